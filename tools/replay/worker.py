# SPDX-License-Identifier: Apache-2.0
"""One of several processes that serve a trace together: every n-th request, in order.

    python -m kvshm.tools.replay.worker ARENA POLICY FD ACCESSES REQUESTS WORKERS INDEX

The workers keep in step, so that together they serve about in the trace's order: none is more than
AHEAD requests ahead of the slowest.
"""
from __future__ import annotations

import os
import sys
import time

import kvshm
from kvshm.eviction.serving import serve

from .board import Board
from .controller import ACCESSES, step_of
from .keys import keys_of

AHEAD = 2
PATIENCE = 60.0  # seconds for a dead worker's successor to come


def work(arena: kvshm.Arena, policy: str, board: Board, index: int, parent: int) -> None:
    requests, workers = board.shape[1:]
    step, since = step_of(policy), 0
    for number in range(index + int(board.done[index]) * workers, requests, workers):
        _keep_in_step(board, number // workers, parent)
        start, end = int(board.bounds[number]), int(board.bounds[number + 1])
        board.refused[index] += serve(arena, keys_of(board.ids[start:end]),
                                      board.bounds[number:number + 2] - start,
                                      board.hits[number:number + 1])
        board.done[index] += 1
        since += end - start
        if step and since >= ACCESSES:
            step(arena)
            since = 0


def _keep_in_step(board: Board, turn: int, parent: int) -> None:
    looks, limit = 0, 0.0
    while board.done.min() < turn - AHEAD:
        looks += 1
        if looks < 200:
            time.sleep(0)  # gives the processor to whoever waits for it
            continue
        limit = limit or time.monotonic() + PATIENCE
        if os.getppid() != parent:
            raise SystemExit("the replay that started this worker has gone")
        if time.monotonic() > limit:
            raise SystemExit(f"waited {PATIENCE:.0f} s for the other workers")
        time.sleep(0.0005)


def main(argv: list[str]) -> None:
    name, policy = argv[:2]
    fd, accesses, requests, workers, index = map(int, argv[2:])
    parent = os.getppid()
    board = Board(fd, accesses, requests, workers)
    os.close(fd)
    with kvshm.Arena.attach(name, pin="off", label=f"replay-{index}") as arena:
        work(arena, policy, board, index, parent)


if __name__ == "__main__":
    main(sys.argv[1:])
