# SPDX-License-Identifier: Apache-2.0
"""S25: whoever sees a block published by another process sees all of it: index entry, header and
payload of one life. Processes in C on all cores of this machine, in an arena of two dozen blocks.

The same orders under ThreadSanitizer and in the models: cpp/tests (preset tsan), tests/model.
"""
from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import kvshm
import kvshm._capi
import pytest

BLOCKS, BLOCK_BYTES = 24, 256
WRONG = ("stale", "torn", "header", "backwards", "failed")
SOURCE = Path(__file__).parent / "native" / "order.c"
SHARES = {2: 0.1, 4: 0.4, 8: 0.5}  # of all pairs, by the number of processes


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = Path(kvshm._capi.__file__).parent
    made = tmp_path_factory.mktemp("order") / "order"
    done = subprocess.run(
        ["cc", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{package / 'include'}", SOURCE,
         f"-L{package / 'lib'}", "-lkvshm", f"-Wl,-rpath,{package / 'lib'}", "-o", made],
        capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return made


class Crowd:
    """Processes that publish and look, and what they have seen so far."""

    def __init__(self, program: Path, name: str, n: int, seconds: float, *more: str) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self.running = [subprocess.Popen(
            [program, name, str(cpus[i % len(cpus)]), str(seconds), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) for i in range(n)]
        self.last: list[dict[str, int]] = [{} for _ in self.running]
        self.ends = time.monotonic() + seconds + 30
        for i in range(n):
            self._read(i)
        self._tell(b"g")

    def _tell(self, byte: bytes) -> None:
        for one in self.running:
            assert one.stdin is not None
            one.stdin.write(byte)
            one.stdin.flush()

    def _read(self, i: int) -> None:
        stream = self.running[i].stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], max(0, self.ends - time.monotonic()))
        line = stream.readline() if ready else b""
        assert line, f"process {i} has nothing to say: {self.running[i].poll()}"
        self.last[i] = json.loads(line)

    def total(self) -> Counter[str]:
        return sum(map(Counter, self.last), Counter())

    def run_until(self, enough: Callable[[Counter[str]], bool]) -> Counter[str]:
        """Until there is enough, or their time is over; what they all had seen at the end."""
        while not enough(self.total()) and not all(one["last"] for one in self.last):
            for i, one in enumerate(self.last):
                if not one["last"]:
                    self._read(i)
        self._tell(b"s")
        for i in range(len(self.running)):
            while not self.last[i]["last"]:
                self._read(i)
        for one in self.running:
            assert one.wait(30) == 0
        return self.total()

    def close(self) -> None:
        for one in self.running:
            one.kill()
            one.wait(30)
            for stream in (one.stdin, one.stdout):
                assert stream is not None
                stream.close()


@pytest.fixture
def crowd(program: Path, arena_name: str) -> Iterator[Callable[..., Crowd]]:
    made: list[Crowd] = []
    with kvshm.Arena.create(arena_name, blocks=BLOCKS, block_bytes=BLOCK_BYTES, pin="off") as arena:

        def start(n: int, seconds: float, *more: str) -> Crowd:
            made.append(Crowd(program, arena_name, n, seconds, *more))
            return made[-1]

        yield start
        for one in made:
            one.close()
        arena.reap()
        assert arena.is_valid() == []


# 1.05 million pairs, or 102 million. A pair: one process has published a life of a block, another
# has seen it for the first time, and looked at every word of it.
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("n", SHARES)
def test_all_of_a_block_or_nothing(crowd, n, rounds, record_property) -> None:
    pairs = int(rounds(1_050_000, 102_000_000) * SHARES[n])
    seconds = rounds(90, 1800)
    begun = time.monotonic()
    seen = crowd(n, seconds).run_until(lambda total: total["fresh"] >= pairs)
    took = time.monotonic() - begun
    record_property("pairs", seen["fresh"])
    print(f"{n} processes: {seen['fresh']:,} pairs of {seen['observed']:,} looks at "
          f"{seen['published']:,} blocks in {took:.1f} s")
    assert {what: seen[what] for what in WRONG if seen[what]} == {}
    assert seen["fresh"] >= pairs, f"only so many in {took:.0f} s"


def test_a_block_published_too_early_is_noticed(crowd) -> None:
    """The same with writers that publish before they write: this is what it would look like."""
    seen = crowd(2, 30, "early").run_until(lambda total: total["stale"] + total["torn"] > 0)
    assert seen["stale"] + seen["torn"] > 0
