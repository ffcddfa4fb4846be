# SPDX-License-Identifier: Apache-2.0
"""What an engine is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONNECTOR = "KvshmConnector"
MODULE = "kvshm.connectors.vllm"
# Nobody is called, nothing is fetched.
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
         "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def kvshm_connector(extra: Mapping[str, Any], policy: str = "recompute") -> dict[str, Any]:
    """kv_transfer_config of our connector; extra is its kv_connector_extra_config."""
    return {"kv_connector": CONNECTOR, "kv_connector_module_path": MODULE, "kv_role": "kv_both",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": dict(extra)}


@dataclass(frozen=True)
class Options:
    """max_num_seqs is 1 since on a CPU a bf16 batch gives other tokens than its requests alone."""

    model: Path
    connector: Mapping[str, Any] | None = None  # kv_transfer_config
    block_size: int = 32  # tokens, a multiple of 32
    max_num_seqs: int = 1
    max_model_len: int = 4096
    max_num_batched_tokens: int | None = None  # vLLM's default; smaller: prefill in chunks
    num_gpu_blocks: int | None = None  # else as many as fit into cpu_kvcache_space
    prefix_caching: bool = True
    enable_lora: bool = False
    tensor_parallel: int = 1
    cpu_kvcache_space: int = 1  # GiB
    # False: engine core, scheduler and worker in the driver's process (with tensor_parallel the
    # workers in processes of their own); True: as `vllm serve` does it
    multiprocessing: bool = False
    threads: str | None = None  # VLLM_CPU_OMP_THREADS_BIND
    args: Mapping[str, Any] = field(default_factory=dict)  # more of EngineArgs
    env: Mapping[str, str] = field(default_factory=dict)  # of the process
    pythonpath: Sequence[Path] = ()  # where modules for call() lie

    def engine_args(self) -> dict[str, Any]:
        wide = self.multiprocessing or self.tensor_parallel > 1
        every: dict[str, Any] = {
            "model": str(self.model), "block_size": self.block_size, "seed": 0,
            "max_num_seqs": self.max_num_seqs, "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_gpu_blocks_override": self.num_gpu_blocks,
            "enable_prefix_caching": self.prefix_caching, "enable_lora": self.enable_lora,
            "tensor_parallel_size": self.tensor_parallel,
            "distributed_executor_backend": "mp" if wide else "uni",
            "enforce_eager": True,
            "kv_transfer_config": self.connector and dict(self.connector),
        }
        return {name: value for name, value in every.items() if value is not None} | dict(self.args)

    def engine_env(self) -> dict[str, str]:
        threads = self.threads
        if threads is None and self.tensor_parallel > 1:
            # Else vLLM wants a NUMA node for each rank.
            threads = "|".join(str(rank) for rank in range(self.tensor_parallel))
        return {
            **QUIET,
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(self.multiprocessing)),
            "VLLM_CPU_KVCACHE_SPACE": str(self.cpu_kvcache_space),
            **({} if threads is None else {"VLLM_CPU_OMP_THREADS_BIND": threads}),
            **self.env,
        }
