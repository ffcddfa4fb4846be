# SPDX-License-Identifier: Apache-2.0
"""A copy between a pool and the arena, and what became of each of its blocks."""
from __future__ import annotations

import time
from errno import EIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvshm.errors import InvalidArgument
from kvshm.records import NONE

if TYPE_CHECKING:
    from kvshm.device.pool import Pool

PRESENT = 1
"""A code: it was there already, nothing was copied."""
UNDER_WAY = 2


class Transfer:
    """Of Pool.onboard() or Pool.offload(). In host memory it is over when the call returns.

    ids: the pool's blocks, in the order of the keys; NONE for those that an onboard did not bring.
    codes: int32 for each: 0 = copied, PRESENT, or negative, why not (-ENOSPC: the target had no
    room); UNDER_WAY until done() says True. reason: in words, of what failed first.
    """

    def __init__(self, pool: Pool, ids: npt.NDArray[np.uint32]) -> None:
        self.pool, self.ids = pool, ids
        self.codes = np.full(len(ids), UNDER_WAY, np.int32)
        self.reason = ""
        self._event: Any = None
        self._over = False

    # What the two kinds do when the copies have ended.
    def _finish(self, lost: bool) -> None:
        raise NotImplementedError

    def _end(self, lost: bool = False) -> None:
        if not self._over:
            self._over = True
            self._finish(lost)
            self.pool._ended(self)

    def _failed(self, where: Any, code: Any, reason: str) -> None:
        self.codes[where] = code
        self.reason = self.reason or reason

    def done(self) -> bool:
        """Are all copies in place, and what was stored published? Never waits."""
        with self.pool._lock:
            if self._over:
                return True
            try:
                if self._event is not None and not self._event.query():
                    return False
            except RuntimeError as error:  # the device is lost: nothing is known of its copies
                self.reason = f"device: {error}"
                self._end(lost=True)
                return True
            self._end()
            return True

    def wait(self, timeout: float) -> bool:
        """Until done(); False after `timeout` seconds: it goes on."""
        if not timeout >= 0:
            raise InvalidArgument(f"timeout: seconds, got {timeout!r}")
        deadline, pause = time.monotonic() + timeout, 2e-5
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, 1e-3)
        return True

    def order(self, stream: Any = None) -> None:
        """What is enqueued on `stream` (the current one) from now on comes after these copies;
        nobody waits here."""
        with self.pool._lock:
            if not self._over:
                self.pool._order(self, stream)

    @property
    def copied(self) -> int:
        return int((self.codes == 0).sum())

    @property
    def present(self) -> int:
        return int((self.codes == PRESENT).sum())

    @property
    def failed(self) -> list[int]:
        """Places of those that did not arrive."""
        return [int(i) for i in np.flatnonzero(self.codes < 0)]

    @property
    def good(self) -> int:
        """Blocks before the first that failed."""
        bad = np.flatnonzero(self.codes < 0)
        return int(bad[0]) if len(bad) else len(self.codes)

    def __repr__(self) -> str:
        state = "over" if self._over else "under way"
        return (f"<kvshm.device.{type(self).__name__}: {len(self.ids)} blocks, {self.copied} "
                f"copied, {self.present} present, {len(self.failed)} failed, {state}>")


class Onboard(Transfer):
    def __init__(self, pool: Pool, ids: npt.NDArray[np.uint32], keys: list[bytes]) -> None:
        super().__init__(pool, ids)
        self.keys = keys
        self.hold: Any = None  # of the arena's blocks, until the last byte has been read

    def _finish(self, lost: bool) -> None:
        if self.hold is not None:
            self.hold.release()
            self.hold = None
        if lost:
            self._failed(self.codes == UNDER_WAY, -EIO, self.reason)
        self.codes[self.codes == UNDER_WAY] = 0
        for i in np.flatnonzero(self.codes <= 0):
            block = int(self.ids[i])
            if self.codes[i] < 0:
                self.ids[i] = NONE
                if lost:
                    self.pool._lose(block)  # the device may still write it
                elif block != NONE:
                    self.pool._give_back(block)
            else:
                self.pool._name(block, self.keys[i])


class Offload(Transfer):
    def __init__(self, pool: Pool, ids: npt.NDArray[np.uint32]) -> None:
        super().__init__(pool, ids)
        self.fills: list[tuple[Any, npt.NDArray[np.intp]]] = []  # and the places of its blocks

    def _finish(self, lost: bool) -> None:
        for fill, places in self.fills:
            if lost:  # neither published nor free: the device may still write into it
                self.pool._lost.append(fill)
                self._failed(places, -EIO, self.reason)
                continue
            codes = self.pool.pages.finish(fill, part=self.pool.part)
            fill.abort()
            self.codes[places] = np.minimum(codes, 0)
            if (codes < 0).any():
                self.reason = self.reason or "a block was not stored"
        self.fills = []
        for block in self.ids:
            self.pool._give_back(int(block))
