# SPDX-License-Identifier: Apache-2.0
"""kvshm: an arena that another process made and filled, attached and asked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import driver
import numpy as np

import kvshm

BLOCK_BYTES = 4096
STORE_SECONDS = 120.0


def identity(block: int) -> kvshm.Identity:
    return kvshm.Identity(model="bench", weights="bench", block_tokens=block)


def arena_name(block: int, pid: int) -> str:
    return f"bench-peers-{block}-{pid}"


def everything(block: int, shapes: str) -> dict[int, list[driver.Request]]:
    return {shape.tokens: driver.requests(shape, block) for shape in driver.shapes(shapes)}


def store(block: int, shapes: str, owner: int) -> None:
    """The other process. Keys from tokens and keys from the engine's hashes are different ones."""
    ident = identity(block)
    asked = [one for some in everything(block, shapes).values() for one in some]
    chains = [keys for one in asked
              for keys in (ident.keys(one.tokens), ident.keys_from_hashes(one.hashes))]
    blocks = sum(map(len, chains)) + 64
    name = arena_name(block, owner)
    with kvshm.Arena.create(name, blocks=blocks, block_bytes=BLOCK_BYTES, identity=ident,
                            helper=False, pin="off") as arena:
        for keys in chains:
            with arena.allocate(len(keys), keys=keys) as fill:
                for i in range(len(fill)):
                    fill.view(i)[:16] = keys[i].tobytes()
                fill.register().release()
        try:
            print("stored", flush=True)
            sys.stdin.read()  # until our owner ends
        finally:
            kvshm.remove(name, force=True)


def ask(block: int, shapes: str) -> None:
    out = driver.protect_stdout()
    asked = everything(block, shapes)
    ident = identity(block)
    other = subprocess.Popen([sys.executable, __file__, "store", str(block), shapes,
                              str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None and other.stdout is not None
    try:
        if not other.stdout.readline():
            driver.fail("the process that stores has ended")
        arena = kvshm.Arena.attach(arena_name(block, os.getpid()), identity=ident, helper=False,
                                   pin="off")

        def look(keys: Any) -> tuple[int, Any]:
            lease = arena.match(keys)
            return len(lease), lease

        def release(lease: Any) -> None:
            lease.release()

        def from_tokens(one: driver.Request) -> np.ndarray:
            return ident.keys(one.tokens)

        sources: dict[str, driver.Source] = {
            "keys": (from_tokens, look, release),
            "hashes": (lambda one: one.hashes, lambda h: look(ident.keys_from_hashes(h)), release),
            "tokens": (lambda one: one.tokens, lambda t: look(ident.keys(t)), release),
        }
        with arena:
            driver.serve(out, {"version": kvshm.__version__}, asked, sources)
    finally:
        other.stdin.close()
        try:
            other.wait(STORE_SECONDS)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait(STORE_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == "store":
        store(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        ask(int(sys.argv[1]), sys.argv[2])
