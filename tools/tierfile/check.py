# SPDX-License-Identifier: Apache-2.0
"""What each slot of a tier is: its record, and the bytes that it speaks of.

Others may be writing. So where anybody has the tier open, a finding counts only if it is seen in
every reading. With the arena's image, what the file is behind of it is told from damage.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvshm.uring import aligned_buffer

from . import layout
from .checks import check64, check128
from .image import Image
from .tier import Tier

Array = np.ndarray[Any, np.dtype[Any]]
Advance = Callable[[int], None]

# In the order of precedence: a slot is the last of these that is true of it. From RECORD on it is
# damage: a load of it is a miss.
MEANING = {
    "empty": "nothing is stored there",
    "ok": "the bytes are those that were stored",
    "duplicate": "another slot has the same key, too",
    "expired": "its time to live is over",
    "epoch": "of an older epoch of the namespace: nobody looks for it",
    "codec": "packed by a codec that this version does not read",
    "stale": "the arena has given it up, and its old descriptor is still there",
    "behind": "right, but its descriptor is not in the file: a restart would lose it",
    "record": "its descriptor is damaged",
    "checksum": "its bytes are not those that its descriptor speaks of",
    "short": "it lies beyond the file's end",
    "unreadable": "the disk gives an error",
    "image": "the arena's descriptor of it is damaged",
}
STATES = list(MEANING)
(EMPTY, OK, DUPLICATE, EXPIRED, EPOCH, CODEC, STALE, BEHIND, RECORD, CHECKSUM, SHORT, UNREADABLE,
 IMAGE) = range(len(STATES))
RUN = 2 << 20  # bytes read at a time, unless a slot is larger


@dataclass
class Result:
    states: Array
    records: Array  # as the file has them
    what: dict[int, str] = field(default_factory=dict)  # errors in words, by slot
    readings: int = 1

    def count(self, state: int) -> int:
        return int(np.count_nonzero(self.states == state))

    @property
    def damaged(self) -> int:
        return int(np.count_nonzero(self.states >= RECORD))


class Check:
    def __init__(self, tier: Tier, image: Image | None, now: float) -> None:
        self.tier, self.shape, self.reader = tier, tier.shape, tier.reader
        self.image, self.now = image, int(now)
        self._memory = aligned_buffer(self.shape.records_bytes)
        self._raw = memoryview(self._memory)
        self._records: Array = np.frombuffer(self._memory, layout.RECORD_TYPE, self.shape.slots)
        run = max(1, RUN // self.shape.slot_bytes)
        self._per_run = run
        self._buffers = [memoryview(aligned_buffer(run * self.shape.slot_bytes)) for _ in range(8)]

    def run(self, readings: int, pause: float, stage: Callable[[str, int], None],
            advance: Advance) -> Result:
        shape = self.shape
        result = Result(np.zeros(shape.slots, np.uint8), self._records)
        stage("descriptors", shape.records_bytes)
        self._read_records(result, 0, shape.records_bytes, advance)
        used = self._judge_records(result, range(shape.slots))
        stage("blocks", len(used))
        self._judge_payloads(result, used, advance)
        while result.readings < readings and result.damaged:
            time.sleep(pause)
            self._again(result)
        self._notes(result)
        return result

    def _again(self, result: Result) -> None:
        """One more look at what was damaged; what is not any more is as this look has it."""
        result.readings += 1
        seen = np.flatnonzero(result.states >= RECORD)
        before = {int(slot): int(result.states[slot]) for slot in seen}
        pages = np.unique(seen // (layout.PAGE // layout.RECORD)) * layout.PAGE
        for at in pages:
            self._read_records(result, int(at), int(at) + layout.PAGE, lambda n: None)
        for slot in before:
            result.states[slot] = EMPTY
            result.what.pop(slot, None)
        if self.image is not None:
            self.image.read_again()
        used = self._judge_records(result, seen)
        self._judge_payloads(result, used, lambda n: None)

    # -- descriptors -----------------------------------------------------------------

    def _read_records(self, result: Result, begin: int, end: int, advance: Advance) -> None:
        size = 1 << 20
        for first in range(begin, end, size * 8):
            places = [(self.shape.records_offset + at, self._raw[at:min(at + size, end)])
                      for at in range(first, min(first + size * 8, end), size)]
            for (offset, buffer), n in zip(places, self.reader.read(0, places), strict=True):
                at = offset - self.shape.records_offset
                if isinstance(n, OSError):
                    self._unreadable_records(result, at, len(buffer))
                    n = len(buffer)
                if n < len(buffer):  # as the core does: what is not there reads as nothing
                    buffer[n:] = bytes(len(buffer) - n)
                advance(len(buffer))

    def _unreadable_records(self, result: Result, at: int, length: int) -> None:
        """Page by page: what can be read is, the slots of the others are unreadable."""
        for page in range(at, at + length, layout.PAGE):
            buffer = self._raw[page:page + layout.PAGE]
            n = self.reader.read(0, [(self.shape.records_offset + page, buffer)])[0]
            if isinstance(n, OSError):
                buffer[:] = bytes(len(buffer))
                first = page // layout.RECORD
                last = min(first + layout.PAGE // layout.RECORD, self.shape.slots)
                for slot in range(first, last):
                    result.states[slot] = UNREADABLE
                    result.what[slot] = f"its descriptor: {n.strerror}"

    def _judge_records(self, result: Result, slots: Any) -> list[int]:
        """The slots whose bytes are to be looked at."""
        some = np.asarray(slots, np.int64)
        filled = self._raw_any(some)
        if self.image is not None:
            filled |= self.image.ready[some]
        used = []
        for slot in map(int, some[filled]):
            if result.states[slot] == UNREADABLE:
                continue
            result.states[slot] = self._judge_record(slot)
            if result.states[slot] == OK:
                used.append(slot)
        return used

    def _raw_any(self, slots: Array) -> Array:
        words = np.frombuffer(self._memory, "<u8", self.shape.slots * 8).reshape(-1, 8)
        return np.asarray(words[slots].any(axis=1))

    def _judge_record(self, slot: int) -> int:
        """OK: its bytes are to be looked at, by `_record_for`."""
        own = self._raw[slot * layout.RECORD:(slot + 1) * layout.RECORD]
        whole = self._whole(own, slot)
        if self.image is None:
            return OK if whole else RECORD
        if not self.image.ready[slot]:
            return STALE if whole else RECORD
        theirs = self.image.record(slot)
        if not self._whole(theirs, slot) or not self.image.same_key(slot):
            return IMAGE
        # Behind of the arena, torn or not: its page is to be written. Damage only if it is the same
        # record otherwise.
        return OK

    def _whole(self, record: Any, slot: int) -> bool:
        r = np.frombuffer(record, layout.RECORD_TYPE, 1)[0]
        return bool(r["key"].any()) and int(r["length"]) <= self.shape.block_bytes and check64(
            record[:layout.SELF_CHECKED], slot) == int(r["self"])

    def _record_for(self, slot: int) -> tuple[Any, bool]:
        """What the slot's bytes must be like, and whether the file says so, too."""
        own = self._raw[slot * layout.RECORD:(slot + 1) * layout.RECORD]
        if self.image is None:
            return own, True
        theirs = self.image.record(slot)
        return theirs, bytes(own) == bytes(theirs)

    # -- bytes -----------------------------------------------------------------------

    def _judge_payloads(self, result: Result, used: list[int], advance: Advance) -> None:
        for file in range(self.shape.files):
            runs = list(self._runs([s for s in used if s % self.shape.files == file]))
            for at in range(0, len(runs), len(self._buffers)):
                self._read_runs(result, file, runs[at:at + len(self._buffers)], advance)

    def _runs(self, slots: list[int]) -> Iterator[list[int]]:
        """Slots of one file that one read has room for."""
        run: list[int] = []
        for slot in slots:
            if run and (slot - run[0]) // self.shape.files >= self._per_run:
                yield run
                run = []
            run.append(slot)
        if run:
            yield run

    def _read_runs(self, result: Result, file: int, runs: list[list[int]],
                   advance: Advance) -> None:
        shape, places = self.shape, []
        for run, buffer in zip(runs, self._buffers, strict=False):
            begin, end = shape.slot_offset(run[0]), shape.slot_offset(run[-1]) + shape.slot_bytes
            places.append((begin, buffer[:end - begin]))
        for run, (begin, buffer), n in zip(runs, places, self.reader.read(file, places),
                                           strict=True):
            for slot in run:
                at = shape.slot_offset(slot) - begin
                there: int | OSError
                if isinstance(n, OSError):
                    place = (begin + at, buffer[at:at + shape.slot_bytes])
                    there = self.reader.read(file, [place])[0]
                else:
                    there = n - at
                self._judge_payload(result, slot, buffer[at:at + shape.slot_bytes], there)
            advance(len(run))

    def _judge_payload(self, result: Result, slot: int, data: memoryview,
                       there: int | OSError) -> None:
        record, same = self._record_for(slot)
        r = np.frombuffer(record, layout.RECORD_TYPE, 1)[0]
        length = int(r["length"])
        if isinstance(there, OSError):
            result.states[slot], result.what[slot] = UNREADABLE, there.strerror or str(there)
        elif there < length:
            result.states[slot] = SHORT
        elif check128(data[:length]) != (int(r["check"][0]), int(r["check"][1])):
            result.states[slot] = CHECKSUM
        elif not same:
            result.states[slot] = BEHIND

    # -- what is no damage ---------------------------------------------------------------

    def _notes(self, result: Result) -> None:
        ok = np.flatnonzero(result.states == OK)
        records = self._records[ok]
        keys = np.ascontiguousarray(records["key"]).view("V16").ravel()
        _, first = np.unique(keys, return_index=True)
        later = np.ones(len(ok), bool)
        later[first] = False
        expires = records["expires"]
        for state, where in (
                (DUPLICATE, later), (EXPIRED, (expires != 0) & (expires <= self.now)),
                (EPOCH, records["epoch"] < self.tier.block.epoch), (CODEC, records["codec"] != 0)):
            result.states[ok[where]] = state
