# SPDX-License-Identifier: Apache-2.0
"""What every peer's driver shares. Run by the peer's own interpreter, so it needs nothing of kvshm
and only the standard library.

A driver says one line of JSON when it has stored the prompts, then one for each order
``SOURCE TOKENS MILLISECONDS``: the median of what a look-up that also pins took. Releasing the
pins lies outside of that.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

SEED = 20
FEWEST = 3  # requests in a round, however long they take
END_SECONDS = 20.0


class Shape(NamedTuple):
    tokens: int
    prompts: int  # as many different ones are stored and asked for in turn


class Request(NamedTuple):
    tokens: list[int]
    hashes: list[bytes]  # the engine's, one for each full block

    @property
    def blocks(self) -> int:
        return len(self.hashes)


# given(request) prepares what the caller of a look-up has in hand; look(given) gives how many
# blocks were found and what is to be released; release(held) does that.
Given = Callable[[Request], Any]
Look = Callable[[Any], tuple[int, Any]]
Release = Callable[[Any], None]
Source = tuple[Given, Look, Release]


def shapes(text: str) -> list[Shape]:
    """From 3000x32,100000x4."""
    return [Shape(*map(int, one.split("x"))) for one in text.split(",")]


def engine_hashes(tokens: list[int], block: int) -> list[bytes]:
    """Chained SHA-256, 32 bytes a block, as engines have them before they ask."""
    parent, made = b"", []
    for at in range(0, len(tokens) - len(tokens) % block, block):
        parent = hashlib.sha256(parent + array("I", tokens[at:at + block]).tobytes()).digest()
        made.append(parent)
    return made


def requests(shape: Shape, block: int) -> list[Request]:
    chance = random.Random(SEED * 1_000_003 + shape.tokens)
    prompts = [[chance.randrange(150_000) for _ in range(shape.tokens)]
               for _ in range(shape.prompts)]
    return [Request(tokens, engine_hashes(tokens, block)) for tokens in prompts]


def protect_stdout() -> Any:
    """A stream to our caller that the peer's own output cannot get into: that goes to stderr."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def serve(out: Any, about: dict[str, Any], asked: dict[int, list[Request]],
          sources: dict[str, Source]) -> None:
    """Until stdin ends."""
    print(json.dumps(about | {"sources": sorted(sources)}), file=out, flush=True)
    prepared: dict[tuple[str, int], Any] = {}
    for line in sys.stdin:
        name, tokens, ms = line.split()
        given, look, release = sources[name]
        some = asked[int(tokens)]
        if (name, int(tokens)) not in prepared:
            prepared[name, int(tokens)] = (itertools.cycle(range(len(some))),
                                           [given(one) for one in some])
        turn, ready = prepared[name, int(tokens)]
        took: list[int] = []
        end = time.perf_counter_ns() + int(ms) * 1_000_000
        while time.perf_counter_ns() < end or len(took) < FEWEST:
            i = next(turn)
            start = time.perf_counter_ns()
            found, held = look(ready[i])
            took.append(time.perf_counter_ns() - start)
            release(held)
            if found != some[i].blocks:
                fail(f"{name}: {found} of {some[i].blocks} blocks found")
        took.sort()
        print(json.dumps({"ns": took[len(took) // 2], "requests": len(took)}), file=out,
              flush=True)


def fail(reason: str) -> NoReturn:
    """What our caller then reports, among all that a peer may have said on stderr."""
    sys.exit(f"failed: {reason}")


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """A server that does not outlive us, however we end."""
    libc = ctypes.CDLL(None)
    set_death_signal = 1  # PR_SET_PDEATHSIG
    return subprocess.Popen(command, stdin=subprocess.DEVNULL,
                            preexec_fn=lambda: libc.prctl(set_death_signal, signal.SIGTERM))


def free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def wait_for(port: int, server: subprocess.Popen[bytes], seconds: float) -> None:
    """Until a server that the driver started takes connections."""
    name = " ".join(map(str, server.args[:2])) if isinstance(server.args, list) else ""
    deadline = time.monotonic() + seconds
    while True:
        if server.poll() is not None:
            fail(f"{name}: ended with status {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                fail(f"{name}: no answer within {seconds:.0f} s")
            time.sleep(0.05)


def end(server: subprocess.Popen[bytes]) -> None:
    """A server that the driver started."""
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(END_SECONDS)
