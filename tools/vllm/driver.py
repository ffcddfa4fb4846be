# SPDX-License-Identifier: Apache-2.0
"""One real vLLM engine, driven by lines of JSON: orders on stdin, answers on what was stdout.

Runs in the environment of vLLM; client.py starts it and documents each order. vLLM and whatever
it starts write to stderr alone. Orders are done one after another: ``{"id", "op", ...}`` is
answered by ``{"id", "result"}`` or ``{"id", "error", "trace"}``; ``{"event": ...}`` may come in
between. When stdin ends, the whole process group does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import Any, TextIO

from .requests import Requests
from .values import prometheus

Message = dict[str, Any]


class Driver:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._engine: Any = None
        self._requests: Requests | None = None

    def tell(self, message: Message) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def do(self, order: Message) -> None:
        number, op = order.pop("id"), order.pop("op")
        try:
            self.tell({"id": number, "result": getattr(self, f"op_{op}")(**order)})
        except Exception as error:  # the asker's business; the driver goes on
            self.tell({"id": number, "error": f"{type(error).__name__}: {error}",
                       "trace": traceback.format_exc()})

    def op_start(self, args: Message, env: dict[str, str]) -> Message:
        os.environ.update(env)  # read when vllm is imported
        began = time.monotonic()
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        imported = time.monotonic()
        transfer = args.pop("kv_transfer_config", None)
        if transfer is not None:
            args["kv_transfer_config"] = vllm.config.KVTransferConfig(**transfer)
        self._engine = LLMEngine.from_engine_args(EngineArgs(**args))
        self._requests = Requests(self._engine, self.tell)
        return {"vllm": vllm.__version__, "import_s": imported - began,
                "start_s": time.monotonic() - imported,
                "block_size": self._engine.vllm_config.cache_config.block_size}

    def op_tokenize(self, text: str, special: bool) -> list[int]:
        return list(self._engine.get_tokenizer().encode(text, add_special_tokens=special))

    def op_generate(self, requests: list[Message], together: bool) -> list[Message]:
        assert self._requests is not None
        return self._requests.generate(requests, together)

    def op_add(self, request: Message) -> str:
        assert self._requests is not None
        return self._requests.add(request)

    def op_step(self, count: int) -> Message:
        assert self._requests is not None
        return self._requests.step(count)

    def op_abort(self, ids: list[str]) -> None:
        assert self._requests is not None
        self._requests.abort(ids)

    def op_reset_prefix_cache(self, reset_connector: bool) -> bool:
        return bool(self._engine.reset_prefix_cache(reset_connector=reset_connector))

    def op_metrics(self) -> dict[str, float]:
        return prometheus()

    def op_call(self, function: str, args: list[Any], kwargs: Message) -> Any:
        module, _, name = function.partition(":")
        return getattr(import_module(module), name)(self._engine, *args, **kwargs)

    def op_stop(self) -> None:
        if self._engine is not None:
            # What LLM's finalizer does: connectors and worker processes are told.
            self._engine.engine_core.shutdown()
            self._engine = None


def _read(orders: queue.SimpleQueue[Message]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    if os.getpgrp() == os.getpid():  # the asker is gone; workers and a busy step go with us
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    driver = Driver(out)
    driver.tell({"event": "ready", "pid": os.getpid()})
    while True:
        order = orders.get()
        last = order["op"] == "stop"
        driver.do(order)
        if last:
            # Threads of vLLM and torch may not hold up the end.
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
