# SPDX-License-Identifier: Apache-2.0
"""C and Python processes on one arena, and the C process alone after every Python process died.

This process is no user of the arena: it drives a program in C99 and Python workers by pipes.
"""
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Worker

HERE = Path(__file__).resolve().parent
BLOCKS, BLOCK_BYTES = 16, 65536

PYTHON = """
import kvshm
import numpy as np
arena = kvshm.Arena.open(sys.argv[1], block_bytes=int(sys.argv[2]), blocks=int(sys.argv[3]),
                         label="python")
leases, fills = [], []

def keys(text):
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(1, 16)

def put(key, byte):
    fill = arena.allocate(1, keys=keys(key))
    np.asarray(fill.view(0))[:] = byte
    fill.register().release()

def get(key):
    with arena.match(keys(key)) as lease:
        if not len(lease):
            return "miss"
        view = lease.view(0)
        data = np.frombuffer(view, np.uint8)
        byte = int(data[0]) if (data == data[0]).all() else "torn"
        del data, view
        return byte

def hold(key):
    leases.append(arena.match(keys(key)))
    return len(leases[-1])

def fill(n):
    fills.append(arena.allocate(n))
    return len(fills[-1])

say("ready")
while True:
    verb, *rest = hear()
    say({"put": put, "get": get, "hold": hold, "fill": fill}[verb](*rest))
"""


class Native:
    """The C program: one line asked, one answered."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        bufsize=0)

    def ask(self, *words: object, timeout: float = 30.0) -> list[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        line, end = b"", time.monotonic() + timeout
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], end - time.monotonic())
            assert ready, f"{words}: no answer"
            got = os.read(self.process.stdout.fileno(), 4096)
            assert got, f"{words}: the C process ended with {self.process.wait(10)}"
            line += got
        verdict, *values = line.decode().split()
        assert verdict == "ok", f"{words}: {line.decode()}"
        return values

    def stat(self) -> dict[str, int]:
        names = ["total", "free", "inactive", "held", "filling", "slots", "reaped_slots"]
        return dict(zip(names, map(int, self.ask("stat"))))


@pytest.fixture(scope="session")
def c_worker(package_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built against the installed package as a user would."""
    program = tmp_path_factory.mktemp("c_worker") / "c_worker"
    subprocess.run(
        ["cc", "-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror",
         f"-I{package_prefix / 'include'}", HERE / "c_worker.c", f"-L{package_prefix / 'lib'}",
         "-lkvshm", f"-Wl,-rpath,{package_prefix / 'lib'}", "-o", program],
        check=True, timeout=100)
    return program


@pytest.fixture
def native(c_worker: Path) -> Iterator[Native]:
    one = Native(c_worker)
    yield one
    one.process.kill()
    one.process.wait(10)


def key(n: int) -> str:
    return (n * 0x9e3779b97f4a7c15f39cc0605cedc835 % 2**128).to_bytes(16, "little").hex()


def start_python(worker: Callable[..., Worker], name: str, n: int) -> list[Worker]:
    started = [worker(PYTHON, name, BLOCK_BYTES, BLOCKS) for _ in range(n)]
    for one in started:
        assert one.hear() == "ready"
    return started


def test_blocks_are_shared_both_ways(worker: Callable[..., Worker], native: Native,
                                     arena_name: str) -> None:
    first, second = start_python(worker, arena_name, 2)
    assert native.ask("open", arena_name) == [str(BLOCKS), str(BLOCK_BYTES)]
    for n in range(1, 5):
        first.ask(["put", key(n), n])
        native.ask("put", key(100 + n), 100 + n)
    for n in range(1, 5):
        assert native.ask("get", key(n)) == [str(n)]
        assert second.ask(["get", key(n)]) == n
        assert first.ask(["get", key(100 + n)]) == 100 + n
        assert second.ask(["get", key(100 + n)]) == 100 + n
    # What is there already is not stored twice, whoever comes second.
    native.ask("put", key(1), 1)
    second.ask(["put", key(101), 101])
    assert native.stat()["inactive"] == 8
    assert native.ask("get", key(999)) == ["miss"]
    assert second.ask(["get", key(999)]) == "miss"
    assert native.ask("valid") == ["0"]
    native.ask("quit")


def test_c_goes_on_when_every_python_process_is_killed(worker: Callable[..., Worker],
                                                       native: Native, arena_name: str) -> None:
    pythons = start_python(worker, arena_name, 3)
    native.ask("open", arena_name)
    for n in range(1, 5):
        pythons[n % 3].ask(["put", key(n), n])
    assert native.ask("hold", key(4))
    assert pythons[0].ask(["hold", key(1)]) == 1
    assert pythons[1].ask(["hold", key(1)]) == 1
    assert pythons[2].ask(["fill", 5]) == 5
    before = native.stat()
    assert (before["held"], before["filling"], before["slots"]) == (2, 5, 4)
    for one in pythons:
        one.process.kill()
    for one in pythons:
        one.kill()
    # It looks up, allocates and evicts at once, long before anybody has noticed.
    assert native.ask("get", key(2)) == ["2"]
    assert int(native.ask("evictloop", 64)[0]) >= 64 - BLOCKS
    assert native.ask("get", key(4)) == ["4"], "what the C process holds stays"
    end = time.monotonic() + 2
    while native.stat()["slots"] != 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert int(native.ask("evictloop", 64)[0]) >= 64 - BLOCKS
    assert native.ask("get", key(1)) == ["miss"], "a dead holder keeps no block from eviction"
    after = native.stat()
    assert after["slots"] == 1 and after["reaped_slots"] >= 3
    assert (after["held"], after["filling"]) == (1, 0)
    assert after["free"] + after["inactive"] == BLOCKS - 1
    assert native.ask("valid") == ["0"]
    native.ask("put", key(7), 7)
    # A fresh Python process finds what the C process has made of it.
    fresh, = start_python(worker, arena_name, 1)
    assert fresh.ask(["get", key(7)]) == 7
    assert fresh.ask(["get", key(4)]) == 4
    native.ask("quit")
