# SPDX-License-Identifier: Apache-2.0
"""Data-parallel replicas under vLLM's AsyncLLM, as `vllm serve --data-parallel-size` has them.

    python replicas.py '{"args": {...}, "requests": [[rank, prompt_token_ids, max_tokens], ...]}'

One after another; writes [{"tokens", "cached"}, ...] to the file that OUT names.
"""
from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


async def answer(engine: Any, number: int, rank: int, prompt: list[int], new: int) -> Any:
    from vllm import SamplingParams

    last: Any = None
    async for last in engine.generate(
            {"prompt_token_ids": prompt},
            SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False),
            f"r{number}", data_parallel_rank=rank):
        pass
    return {"tokens": list(last.outputs[0].token_ids), "cached": last.num_cached_tokens}


async def serve(args: dict[str, Any], requests: list[Any]) -> list[Any]:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args["kv_transfer_config"] = KVTransferConfig(**args["kv_transfer_config"])
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
    try:
        return [await answer(engine, number, *request) for number, request in enumerate(requests)]
    finally:
        engine.shutdown()


if __name__ == "__main__":
    Path(os.environ["OUT"]).write_text(json.dumps(asyncio.run(serve(**json.loads(sys.argv[1])))))
