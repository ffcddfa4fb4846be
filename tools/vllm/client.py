# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine in a process of its own, from outside. Needs no vLLM here.

    with Engine(python_of_vllm(), Options(model, kvshm_connector({"name": "x"}))) as engine:
        (answer,) = engine.generate([Request(list(range(1000)), max_tokens=16)])

Every call waits no longer than its limit; EngineError says what happened and ends with the last
lines of the engine's log. Calls may come from several threads; the engine does them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .channel import Channel, EngineError
from .options import Options

__all__ = ["Answer", "Engine", "EngineError", "Lora", "Request", "Step", "close_all"]

START_LIMIT = 240.0  # seconds; a busy machine takes long to import vLLM
LIMIT = 120.0


@dataclass(frozen=True)
class Lora:
    name: str
    path: str


@dataclass(frozen=True)
class Request:
    prompt_token_ids: list[int]
    max_tokens: int = 16
    cache_salt: str | None = None
    lora: Lora | None = None
    id: str | None = None
    priority: int = 0


@dataclass(frozen=True)
class Answer:
    id: str
    tokens: list[int]
    num_cached_tokens: int  # of the prompt, from the engine's own cache or the connector
    finish_reason: str
    ttft_ms: float | None  # from the engine's taking the request to its first token
    total_ms: float


@dataclass(frozen=True)
class Step:
    finished: list[Answer]
    open: dict[str, list[int]]  # tokens so far of each request in flight
    computed: dict[str, int]  # their tokens with KV; empty with multiprocessing


class Engine:
    """Starts at once; ready when the constructor returns, unless wait=False: then after ready()."""

    def __init__(self, python: Path, options: Options, label: str = "vllm",
                 wait: bool = True) -> None:
        self.label = label
        self.options = options
        # Called in a thread of ours with (request, position) after each step of generate() that
        # computed prompt tokens; not with multiprocessing.
        self.on_progress: Callable[[str, int], None] | None = None
        self._channel = Channel(python, label, options.engine_env(), options.pythonpath, self._hear)
        self._start = self._channel.order(
            "start", args=options.engine_args(), env=options.engine_env())
        if wait:
            try:
                self.ready()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the driver; its process group has this number and holds all that the engine starts."""
        return self._channel.pid

    def ready(self, limit: float = START_LIMIT) -> dict[str, Any]:
        """{"vllm": version, "import_s", "start_s": seconds, "block_size"}"""
        return dict(self._channel.result(self._start, "start", limit))

    def generate(self, requests: Sequence[Request], together: bool = False,
                 limit: float = LIMIT) -> list[Answer]:
        """One after another, or all at once (max_num_seqs of them in a batch)."""
        return self.answers(self.begin(requests, together), limit)

    def begin(self, requests: Sequence[Request], together: bool = False) -> Future[Any]:
        """generate() without waiting; answers() waits for it."""
        return self._channel.order("generate", requests=[asdict(one) for one in requests],
                                   together=together)

    def answers(self, begun: Future[Any], limit: float = LIMIT) -> list[Answer]:
        return [Answer(**one) for one in self._channel.result(begun, "generate", limit)]

    def add(self, request: Request, limit: float = LIMIT) -> str:
        """Puts it into the engine's queue; returns its id. Nothing is computed before step()."""
        return str(self._do("add", limit, request=asdict(request)))

    def step(self, count: int = 1, limit: float = LIMIT) -> Step:
        """So many steps of the engine; without multiprocessing also when nothing is in flight."""
        got = self._do("step", limit, count=count)
        return Step([Answer(**one) for one in got["finished"]], got["open"], got["computed"])

    def abort(self, *ids: str, limit: float = LIMIT) -> None:
        self._do("abort", limit, ids=list(ids))

    def tokenize(self, text: str, special: bool = False, limit: float = LIMIT) -> list[int]:
        """special: with the marks that the tokenizer puts around a text."""
        return list(self._do("tokenize", limit, text=text, special=special))

    def reset_prefix_cache(self, reset_connector: bool = False, limit: float = LIMIT) -> bool:
        return bool(self._do("reset_prefix_cache", limit, reset_connector=reset_connector))

    def metrics(self, limit: float = LIMIT) -> dict[str, float]:
        """Prometheus samples by name ("vllm:external_prefix_cache_hits_total"); of labelled ones
        also one for each set of labels: ``NAME{source=host}``."""
        return dict(self._do("metrics", limit))

    def call(self, function: str, *args: Any, limit: float = LIMIT, **kwargs: Any) -> Any:
        """"module:function" of options.pythonpath, called in the engine's process with the
        LLMEngine and these; they and the result must be JSON."""
        return self._do("call", limit, function=function, args=args, kwargs=kwargs)

    def log(self) -> str:
        """All that the engine wrote so far."""
        return self._channel.log()

    @property
    def log_path(self) -> Path:
        """Of a file that goes with close()."""
        return self._channel.log_path

    def kill(self) -> None:
        """SIGKILL to the whole process group; returns when none of it is left."""
        self._channel.kill()

    def close(self, limit: float = 30.0) -> None:
        """Asks it to stop; kills what is left after the limit, or at once if it is busy."""
        if self._channel.idle and self._start.exception(0) is None:
            self._channel.stop(limit)
        self._channel.close()

    def _do(self, op: str, limit: float, **fields: Any) -> Any:
        return self._channel.result(self._channel.order(op, **fields), op, limit)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress" and self.on_progress is not None:
            self.on_progress(event["request"], event["position"])


def close_all(engines: Iterable[Engine]) -> None:
    """Side by side: each takes its seconds to end."""
    several = list(engines)
    if several:
        with ThreadPoolExecutor(len(several)) as pool:
            list(pool.map(lambda engine: engine.close(), several))
