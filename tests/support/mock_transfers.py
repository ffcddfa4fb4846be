# SPDX-License-Identifier: Apache-2.0
"""Transfers of the vLLM connector that fail, or take their time, as the test says: as device memory
would, whose copies are only begun by a call."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import kvshm
import numpy as np


class Script:
    """What a test decides. `install` puts it into the connector's module for workers to come."""

    def __init__(self) -> None:
        # (rank, job) -> which of the job's blocks, or None for all, do not come
        self.bad_loads: Callable[[int, Any], Iterable[int] | None] = lambda rank, job: ()
        self.bad_saves: Callable[[int, Any], bool] = lambda rank, job: False
        self.hold_loads = self.hold_saves = False
        self.flushed: list[int] = []
        self.instances: list[Any] = []

    def install(self, patch: Any, module: Any) -> Script:
        """module: the connector's, as support.mock_vllm gives it."""
        import sys

        worker = sys.modules[module.WorkerSide.__module__]
        patch.setattr(worker, "HostTransfers", scripted(worker.HostTransfers, self))
        return self

    def release_loads(self, number: int = 1 << 30) -> None:
        """The first of the loads that are held end now."""
        for one in self.instances:
            one.end_loads(number)

    def release_saves(self, rank: int | None = None) -> None:
        for one in self.instances:
            if rank is None or one.rank == rank:
                one.flush(list(one.begun))


def scripted(base: Any, script: Script) -> Any:
    result = base.load.__globals__["Result"]

    class Scripted(base):
        def __init__(self, arena: Any, pages: Any, part: int, load_timeout: float) -> None:
            super().__init__(arena, pages, part, load_timeout)
            self.rank = part
            self.begun: dict[int, tuple[Any, Any]] = {}
            self._copied: list[tuple[int, Any]] = []
            self._lost: list[tuple[int, Any]] = []
            self._held: list[Any] = []
            self._over: list[tuple[Any, Any]] = []
            self._bad: Iterable[int] | None = ()
            script.instances.append(self)

        # ---- loads

        def load(self, job: Any) -> Any:
            self._bad = script.bad_loads(self.rank, job)
            self._place = 0
            return super().load(job)

        def _load(self, pages: Any, handles: Any, rows: Any) -> Any:
            place, self._place = self._place, self._place + len(rows)
            wrong = set(range(place, place + len(rows)) if self._bad is None else self._bad)
            bad = np.array([place + i in wrong for i in range(len(rows))], bool)
            codes = np.full(len(rows), -5, np.int32)
            good = super()._load(pages, handles[~bad], rows[~bad]) if not bad.all() else []
            if good is None:
                return None
            codes[~bad] = good
            return codes

        def later(self, job: Any) -> None:
            if script.hold_loads:
                self._held.append(job)
            else:
                self._over.append((job, self.load(job)))

        def end_loads(self, number: int) -> None:
            ended, self._held = self._held[:number], self._held[number:]
            self._over += [(job, self.load(job)) for job in ended]

        def finished(self) -> Any:
            over, self._over = self._over, []
            return over

        # ---- saves

        def save(self, job: Any) -> Any:
            if script.bad_saves(self.rank, job):
                return result(1, failed_at=0)
            if not script.hold_saves:
                return super().save(job)
            self.begun[job.job] = (job, self._arena.join(job.piece.handles))
            return None

        def flush(self, jobs: Sequence[int]) -> None:
            """The engine's blocks are read now, whatever is in them."""
            script.flushed += [number for number in jobs if number in self.begun]
            for number in jobs:
                if number not in self.begun:
                    continue
                job, fill = self.begun.pop(number)
                pages = self._pages[job.piece.group]
                try:
                    pages.store(fill, job.piece.rows, part=self._part)
                except kvshm.Error:  # the arena was removed
                    self._lost.append((number, result(1, failed_at=0)))
                    continue
                self._copied.append((number, (job, fill)))

        def saved(self) -> Any:
            over, self._lost = self._lost, []
            for number, (job, fill) in self._copied:
                try:
                    codes = self._pages[job.piece.group].finish(fill, part=self._part)
                except kvshm.Error:
                    codes = np.array([-1])
                bad = np.flatnonzero(codes < 0)
                fill.abort()
                over.append((number, result(1, int(bad[0])) if len(bad) else result(1)))
            self._copied = []
            return over

        def close(self) -> None:
            self.end_loads(1 << 30)
            self.flush(list(self.begun))
            super().close()

    return Scripted
