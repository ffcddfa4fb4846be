# SPDX-License-Identifier: Apache-2.0
"""What test_driver.py calls in the engine's process."""
import time
from typing import Any


def block_size(engine: Any) -> int:
    return engine.vllm_config.cache_config.block_size


def kv_groups(engine: Any) -> int:
    return len(engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups)


def echo(engine: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return [args, kwargs]


def sleep(engine: Any, seconds: float) -> None:
    time.sleep(seconds)


def fail(engine: Any) -> None:
    raise KeyError("on purpose")
