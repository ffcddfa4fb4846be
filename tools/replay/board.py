# SPDX-License-Identifier: Apache-2.0
"""What the processes of one replay share beside the arena: the trace, and how far each has come.

Memory without a name: it goes with the last process that has it. Every number of `done`,
`refused` and `hits` is written by one process and read by others, as a guess that only paces them.
"""
from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .trace import Ids, Trace, Whole


class Board:
    """ids, bounds: the trace's. hits: of each request. done, refused: of each worker, how many of
    its requests are served, and blocks that had no room."""

    def __init__(self, fd: int, accesses: int, requests: int, workers: int) -> None:
        self.fd, self.shape = fd, (accesses, requests, workers)
        self._map = mmap.mmap(fd, size_of(*self.shape))
        self.ids: Ids = self._part(np.uint64, accesses, 0)
        self.bounds: Whole = self._part(np.int64, requests + 1, 8 * accesses)
        at = 8 * (accesses + requests + 1)
        self.done: Whole = self._part(np.int64, workers, at)
        self.refused: Whole = self._part(np.int64, workers, at + 8 * workers)
        self.hits: npt.NDArray[np.int32] = self._part(np.int32, requests, at + 16 * workers)

    def _part(self, kind: Any, count: int, offset: int) -> Any:
        return np.frombuffer(self._map, kind, count, offset)


def size_of(accesses: int, requests: int, workers: int) -> int:
    return 8 * (accesses + requests + 1) + 16 * workers + 4 * requests


def make_board(trace: Trace, workers: int) -> Board:
    """The caller closes its fd. Raises OSError where there is no memory for it."""
    shape = trace.accesses, trace.requests, workers
    fd = os.memfd_create("kvshm replay", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_of(*shape))
        os.posix_fallocate(fd, 0, size_of(*shape))
        board = Board(fd, *shape)
    except BaseException:
        os.close(fd)
        raise
    board.ids[:] = trace.ids
    board.bounds[:] = trace.bounds
    return board
