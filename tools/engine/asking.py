# SPDX-License-Identifier: Apache-2.0
"""What the demo wants of any engine: workers in processes of their own, and words as tokens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


class WorkerError(DemoError):
    """A worker died or reported an error; the message says which and what it last wrote."""


@dataclass(frozen=True)
class Reply:
    tokens: list[int]
    logits: np.ndarray | None  # (tokens, vocabulary), where the engine tells them
    ttft_ms: float
    reused: list[str]  # keys of the prompt's blocks that it did not compute
    chunks: list[tuple[int, int]]
    counts: dict[str, int]


class Worker(Protocol):
    """Its events, told from any thread: "progress" (position: prompt tokens computed so far),
    "block" (key, parent, made: a block it has computed and others may find), "done" (counts)."""

    label: str

    @property
    def pid(self) -> int: ...
    def wait_ready(self) -> Any: ...
    def ask(self, tokens: list[int], new: int, reuse: bool = True) -> Future[Reply]: ...
    def kill(self) -> None: ...
    def ask_to_stop(self) -> None: ...
    def stop(self) -> None: ...


Event = Callable[[Worker, dict[str, Any]], None]
Start = Callable[[str, Event], Worker]  # with a label; does not wait until it is ready


class Language(Protocol):
    """Texts as tokens."""

    def system_turn(self, text: str) -> list[int]: ...
    def user_turn(self, text: str) -> list[int]: ...
    def end_turn(self) -> list[int]: ...
