# SPDX-License-Identifier: Apache-2.0
"""Several processes serve one trace from one arena; on request some are killed and replaced."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from typing import IO

import kvshm
import numpy as np

from .board import Board, make_board
from .drive import Tick, broken_of
from .failures import ReplayError
from .outcome import Outcome, growth
from .temporary import temporary_arena
from .trace import Trace

MOST = 40  # of the arena's 48 slots: dead ones take some until they are reaped


class Crew:
    """The workers of one board; the parent's side."""

    def __init__(self, arena: kvshm.Arena, policy: str, board: Board) -> None:
        self._arena, self._policy, self._board = arena, policy, board
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(board.shape[2]):
            self._start(index)

    def _start(self, index: int) -> None:
        argv = [self._arena.name, self._policy, self._board.fd, *self._board.shape, index]
        self._running[index] = subprocess.Popen(
            [sys.executable, "-m", "kvshm.tools.replay.worker", *map(str, argv)],
            pass_fds=[self._board.fd], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self, index: int) -> bool:
        """Kills it in the midst of what it does, and starts its successor. False: it had ended."""
        worker = self._running.get(index)
        if worker is None or worker.poll() is not None:
            return False
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        self._arena.reap()
        self._start(index)
        return worker.returncode == -signal.SIGKILL

    def look(self) -> bool:
        """Whether somebody is still at work. Raises ReplayError if one failed."""
        for index, worker in list(self._running.items()):
            if worker.poll() is None:
                continue
            del self._running[index]
            if worker.returncode:
                said = _last_line(worker.stderr)
                raise ReplayError(f"worker {index} ended with {worker.returncode}: {said}")
            _last_line(worker.stderr)
        return bool(self._running)

    def live(self) -> list[int]:
        return sorted(self._running)

    def end(self) -> None:
        for worker in self._running.values():
            worker.kill()
            worker.communicate()


def _last_line(pipe: IO[bytes] | None) -> str:
    if pipe is None:
        return ""
    with pipe:
        lines = pipe.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no word"


def replay_together(trace: Trace, policy: str, blocks: int, processes: int, kills: int = 0,
                    seed: int = 0, tick: Tick = lambda requests: None) -> Outcome:
    """Requests are dealt round robin. kills: how many workers die, at moments by `seed`."""
    if not 1 <= processes <= MOST:
        raise ReplayError(f"--processes {processes}: wanted 1 to {MOST}")
    r = np.random.default_rng(seed)
    # Not at the very end: whoever is killed is to have had work left.
    moments = deque(sorted(r.integers(0, max(1, trace.requests * 9 // 10), kills).tolist()))
    board = make_board(trace, processes)
    try:
        with temporary_arena(blocks, policy, helper=True) as arena:
            before, began, killed = arena.stats(), time.monotonic(), 0
            crew = Crew(arena, policy, board)
            try:
                served = 0
                while crew.look():
                    now = int(board.done.sum())
                    tick(now - served)
                    served = now
                    if moments and served >= moments[0] and crew.kill(int(r.choice(crew.live()))):
                        moments.popleft()
                        killed += 1
                    time.sleep(0.002)
                tick(trace.requests - served)
            finally:
                crew.end()
            seconds = time.monotonic() - began
            arena.reap()
            return Outcome(policy, blocks, processes, board.hits.copy(),
                           growth(before, arena.stats()), int(board.refused.sum()), seconds,
                           kills=killed, broken=broken_of(arena))
    finally:
        os.close(board.fd)
