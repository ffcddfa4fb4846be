# SPDX-License-Identifier: Apache-2.0
"""Workers at their seats: asked all the time, killed at random, replaced at once."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .engines import Gone, Member, Said, Site, same
from .watch import Watch, sample

SETTLED = 6  # answers of a worker until its memory is that of one at work
Say = Callable[[str], None]


@dataclass
class Tally:
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    cut_off: int = 0  # requests that died with their worker
    failed: list[str] = field(default_factory=list)  # without one having been killed
    kills: int = 0
    prompt_tokens: int = 0
    found_tokens: dict[str, int] = field(default_factory=dict)  # by how the arena is used
    watches: list[Watch] = field(default_factory=list)


class Seat:
    def __init__(self, site: Site, wanted: list[Said], number: int, seed: int, tally: Tally,
                 lock: threading.Lock) -> None:
        self._site, self._wanted, self._tally, self._lock = site, wanted, tally, lock
        self._number, self._lives = number, 0
        self._chance = random.Random(f"{seed} {number}")
        self.member = self._start()
        self._killed = threading.Event()
        self._answered = 0
        self._watch = Watch()

    def _start(self) -> Member:
        self._lives += 1
        return self._site.start(f"seat-{self._number}-{self._lives}")

    def kill(self) -> bool:
        """From another thread; the seat sees to a new one. False: it is at that already."""
        if self._killed.is_set():
            return False
        self._killed.set()
        self.member.kill()
        return True

    def run(self, end: float) -> None:
        line: deque[tuple[int, Future[Any]]] = deque()
        while time.monotonic() < end or line:
            while time.monotonic() < end and len(line) < self._site.depth:
                which = self._chance.randrange(len(self._wanted))
                line.append((which, self.member.ask(self._site.requests[which])))
            which, begun = line.popleft()
            try:
                self._take(which, self.member.answer(begun))
            except Gone as gone:
                with self._lock:
                    self._tally.cut_off += 1 + len(line)
                    if not self._killed.is_set():
                        self._tally.failed.append(str(gone))
                line.clear()
                if time.monotonic() < end:
                    self._replace()
        self._end()

    def _take(self, which: int, said: Said) -> None:
        asked = self._site.requests[which]
        right = same(said, self._wanted[which])
        with self._lock:
            tally = self._tally
            tally.answers += 1
            tally.prompt_tokens += len(asked.tokens)
            how = self.member.how
            tally.found_tokens[how] = tally.found_tokens.get(how, 0) + said.found
            if not right:
                tally.wrong.append(f"{self.member.label}: request {which}, {said.found} of "
                                   f"{len(asked.tokens)} tokens found")
        self._answered += 1
        if self._answered >= SETTLED:
            self._watch.note(sample(self.member.pid))

    def _replace(self) -> None:
        self._end()
        member = self._start()
        member.ready()
        self.member = member
        self._killed.clear()

    def _end(self) -> None:
        with self._lock:
            self._tally.watches.append(self._watch)
        self._watch, self._answered = Watch(), 0


def soak(site: Site, wanted: list[Said], workers: int, seconds: float, every: float, seed: int,
         say: Say) -> tuple[Tally, list[Member]]:
    """Asks for so long, with a kill about `every` seconds. Returns what came of it and who is
    still there, idle; the caller closes them."""
    tally, lock = Tally(), threading.Lock()
    seats = [Seat(site, wanted, number, seed, tally, lock) for number in range(workers)]
    errors: list[BaseException] = []
    try:
        for seat in seats:
            seat.member.ready()
        end = time.monotonic() + seconds

        def work(seat: Seat) -> None:
            try:
                seat.run(end)
            except BaseException as error:  # a thread's own death would go unnoticed
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seat,)) for seat in seats]
        for thread in threads:
            thread.start()
        _kill(seats, end, every, random.Random(seed), tally, say)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
    except BaseException:
        for seat in seats:
            seat.member.close()
        raise
    return tally, [seat.member for seat in seats]


def _kill(seats: list[Seat], end: float, every: float, chance: random.Random, tally: Tally,
          say: Say) -> None:
    told = time.monotonic()
    while True:
        pause = chance.uniform(0.5, 1.5) * every
        if not tally.kills:
            pause = min(pause, (end - time.monotonic()) / 3)
        if time.monotonic() + pause >= end - min(every, 5.0):
            break  # who comes last has something to do
        time.sleep(pause)
        tally.kills += chance.choice(seats).kill()
        if time.monotonic() - told > 30:
            told = time.monotonic()
            say(f"{tally.answers} answers, {tally.kills} kills, {len(tally.wrong)} wrong")
    time.sleep(max(0.0, end - time.monotonic()))
