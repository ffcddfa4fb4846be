# SPDX-License-Identifier: Apache-2.0
"""Starts the peers' drivers and asks them in turn."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ...environments import Absent, frozen, need, python_with
from .. import redis
from ..native import BenchError, Facts, Role
from ..progress import Progress
from ..rounds import interleave, samples
from .catalog import DISKS, KVSHM, PEERS, SOURCES, Peer

# Told to peers that would otherwise call home or fill the screen.
QUIET = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "LMCACHE_LOG_LEVEL": "WARNING",
         "LMCACHE_DISABLE_BANNER": "1"}
REASON = 300  # characters
TELLING = re.compile(r"failed: |[\w.]+(Error|Exception|Interrupt)\b")


@dataclass(frozen=True)
class Scale:
    blocks: tuple[int, ...] = (16, 256)  # tokens a block
    prompts: tuple[tuple[int, int], ...] = ((3000, 32), (100_000, 4))  # tokens, different ones
    rounds: int = 9
    round_ms: int = 100

    @property
    def shapes(self) -> str:
        return ",".join(f"{tokens}x{many}" for tokens, many in self.prompts)


QUICK = Scale(prompts=((600, 4), (3000, 2)), rounds=3, round_ms=20)


@dataclass(frozen=True)
class Cell:
    """What a look-up of one request took, at one peer, in microseconds."""

    peer: str
    source: str
    tokens: int
    block: int  # tokens
    value: float | None
    spread: tuple[float, float] | None = None  # quartiles of the rounds' medians
    samples: int = 0
    reason: str = ""  # why there is no value

    @property
    def ns_per_token(self) -> float | None:
        return None if self.value is None else 1000 * self.value / self.tokens

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"ns_per_token": self.ns_per_token}


@dataclass
class Result:
    cells: list[Cell] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # why, in the words of what refused
    installed: dict[str, list[str]] = field(default_factory=dict)

    def cell(self, peer: str, source: str, tokens: int, block: int) -> Cell:
        return next(c for c in self.cells
                    if (c.peer, c.source, c.tokens, c.block) == (peer, source, tokens, block))


class Asked:
    """A driver that may fail: then it says why, and is not asked again."""

    def __init__(self, peer: Peer, python: Path, given: Sequence[str], log: Path) -> None:
        self.reason = ""
        self._log = log
        with open(log, "wb") as errors:
            self._role = Role([str(python), str(peer.path), *given], stderr=errors,
                              env=os.environ | QUIET)

    def start(self) -> Facts:
        try:
            return self._role.facts
        except BenchError as e:
            self._failed(e)
            return {}

    def run(self, order: str) -> Facts:
        if self.reason:
            return {}
        try:
            return self._role.run(order)
        except BenchError as e:
            self._failed(e)
            return {}

    def close(self) -> None:
        self._role.close()

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *error: Any) -> None:
        self._role.__exit__(*error)

    def _failed(self, error: BenchError) -> None:
        said = self._log.read_text(errors="replace").strip().splitlines()
        telling = [line for line in said if TELLING.match(line)] or said
        self.reason = (telling[-1].removeprefix("failed: ").strip()[:REASON] if telling
                       else str(error))


def measure(wanted: Sequence[str], scale: Scale, progress: Progress) -> Result:
    result = Result()
    pythons: dict[str, Path] = {}
    for name in wanted:
        try:
            pythons[name] = _prepare(name, PEERS[name], result)
        except Absent as e:
            result.absent[name] = str(e)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvshm-bench-")))
        more: dict[str, list[str]] = {}
        if "redis" in pythons:
            try:
                more["redis"] = [stack.enter_context(redis.server())]
            except BenchError as e:
                result.absent["redis"] = str(e)
                del pythons["redis"]
        for block in scale.blocks:
            progress.part(f"{block} tokens a block")
            with _drivers(pythons, more, block, scale, logs) as drivers:
                _ask(drivers, block, scale, progress, result)
    for name in wanted:  # whoever could not be asked has its rows, too
        for block in scale.blocks:
            for tokens, _ in scale.prompts:
                for source in SOURCES:
                    if name in result.absent:
                        result.cells.append(Cell(name, source, tokens, block, None,
                                                 reason=result.absent[name]))
                    elif source not in PEERS[name].sources:
                        result.cells.append(Cell(name, source, tokens, block, None,
                                                 reason="it has no such look-up"))
    return result


def _prepare(name: str, peer: Peer, result: Result) -> Path:
    if not peer.steps:
        return Path(sys.executable)
    need(name, peer.libraries, peer.programs)
    python = python_with(name, peer.steps)
    result.installed[name] = frozen(python)
    return python


def prepared(name: str) -> tuple[Path, Peer]:
    """The interpreter of a local disk's driver. Absent says why there is none."""
    peer = DISKS[name]
    return python_with(name, peer.steps), peer


@contextmanager
def _drivers(pythons: dict[str, Path], more: dict[str, list[str]], block: int, scale: Scale,
             logs: Path) -> Iterator[dict[str, Asked]]:
    with ExitStack() as stack:
        drivers = {}
        for name, python in pythons.items():
            drivers[name] = Asked(PEERS[name], python,
                                  [str(block), scale.shapes, *more.get(name, [])],
                                  logs / f"{name}-{block}")
            stack.enter_context(drivers[name])
        yield drivers


def _ask(drivers: dict[str, Asked], block: int, scale: Scale, progress: Progress,
         result: Result) -> None:
    for name, driver in drivers.items():
        progress.step(f"{name} stores the prompts", 0.0)
        if version := driver.start().get("version"):
            result.versions[name] = version
    steps = [(tokens, source) for tokens, _ in scale.prompts for source in SOURCES]
    for i, (tokens, source) in enumerate(steps):
        asked = {name: driver for name, driver in drivers.items()
                 if source in PEERS[name].sources}
        order = f"{source} {tokens} {scale.round_ms}"
        got = interleave({name: partial(driver.run, order) for name, driver in asked.items()},
                         scale.rounds, progress,
                         f"{tokens} tokens by {source}, {i + 1} of {len(steps)}")
        for name, driver in asked.items():
            if driver.reason:
                cell = Cell(name, source, tokens, block, None, reason=driver.reason)
            else:
                cell = _cell(name, source, tokens, block, samples(got[name]))
            result.cells.append(cell)


def _cell(name: str, source: str, tokens: int, block: int, ns: list[float]) -> Cell:
    low, _, high = quantiles(ns, n=4) if len(ns) > 1 else (ns[0],) * 3
    return Cell(name, source, tokens, block, median(ns) / 1000, (low / 1000, high / 1000),
                len(ns))


def names(text: str) -> list[str]:
    """Of a list with commas; kvshm is always among them, as what the others stand beside."""
    given = [one.strip().lower() for one in text.split(",") if one.strip()]
    for one in given:
        if one not in PEERS:
            raise ValueError(f"{one}: expected some of {', '.join(PEERS)}")
    return [name for name in PEERS if name in given or name == KVSHM]
