# SPDX-License-Identifier: Apache-2.0
"""Processes that measure the connector's parts: store, ask, copy. Spoken to as pyside.py is."""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kvshm
from kvshm.connectors.vllm import lookup
from kvshm.connectors.vllm.groups import Group
from kvshm.connectors.vllm.keys import GroupKeys
from kvshm.connectors.vllm.requests import RequestState

from ..peers import driver
from ..pyside import make_keys, say
from .absent import stand_in

BLOCK = 16  # tokens
# As of Llama 3.1 8B: 2 MiB a block.
LAYERS, HEADS, WIDTH = 32, 8, 128
AT_ONCE = 64  # blocks of an allocation, as the connector makes them

Step = Callable[[], float]  # what it took, in ns, or GB/s

GROUPS = (Group(0, "FullAttentionSpec", BLOCK, 1, ("layer",), (4096,)),)
IDENTITY = kvshm.Identity(model="bench", weights="bench", block_tokens=BLOCK)


def asked(args: dict[str, str]) -> list[driver.Request]:
    """The same requests that LMCache's driver has."""
    return driver.requests(driver.Shape(int(args["tokens"]), int(args["prompts"])), BLOCK)


def store(args: dict[str, str]) -> dict[str, Step]:
    """The process that computed all of it."""
    every = [IDENTITY.keys_from_hashes(one.hashes) for one in asked(args)]
    arena = kvshm.Arena.create(args["name"], dir=args.get("dir"), blocks=sum(map(len, every)) + 64,
                               block_bytes=4096, identity=IDENTITY, helper=False, pin="off",
                               huge=args["huge"])
    for keys in every:
        with arena.allocate(len(keys), keys=keys) as fill:
            fill.register().release()
    return {}


def ask(args: dict[str, str]) -> dict[str, Step]:
    """The scheduler's side. Behind each prompt it knows 8 more hashes that nobody has stored."""
    arena = kvshm.Arena.attach(args["name"], dir=args.get("dir"), identity=IDENTITY, helper=False,
                               pin="off")
    more = [hashlib.sha256(b"%d" % i).digest() for i in range(8)]
    states = []
    for one in asked(args):
        request = SimpleNamespace(block_hashes=one.hashes + more,
                                  num_tokens=len(one.tokens) + BLOCK * len(more) + 1)
        state = RequestState(request, GROUPS, IDENTITY, b"")
        state.extend_keys()
        states.append(state)
    turn = itertools.cycle(states)
    blocks = int(args["tokens"]) // BLOCK

    def find(state: RequestState) -> lookup.Hold:
        hold = lookup.find(arena, GROUPS, state.keys, 0, state.request.num_tokens - 1, "bench")
        if hold.boundary != blocks * BLOCK:
            raise SystemExit(f"{hold.boundary} of {blocks * BLOCK} tokens found")
        return hold

    def keys() -> float:
        hashes = next(turn).request.block_hashes
        own = GroupKeys(IDENTITY, GROUPS[0], False, b"")
        start = time.perf_counter_ns()
        own.extend(hashes)
        return float(time.perf_counter_ns() - start)

    def first() -> float:
        state = next(turn)
        start = time.perf_counter_ns()
        hold = find(state)
        end = time.perf_counter_ns()
        hold.release()
        return float(end - start)

    def again() -> float:
        state = next(turn)
        if state.hold is None:
            state.hold = find(state)
        start = time.perf_counter_ns()
        state.extend_keys()
        lookup.extend(arena, GROUPS, state.keys, state.hold, state.request.num_tokens - 1, "bench")
        end = time.perf_counter_ns()
        return float(end - start)

    grown = GroupKeys(IDENTITY, GROUPS[0], False, b"")
    hashes = list(states[0].request.block_hashes)
    grown.extend(hashes)

    def extension() -> float:
        hashes.append(more[len(hashes) % 8])
        start = time.perf_counter_ns()
        grown.extend(hashes)
        return float(time.perf_counter_ns() - start)

    return {"keys": keys, "first": first, "again": again, "extension": extension}


def copy(args: dict[str, str]) -> dict[str, Step]:
    """A worker: the transfers of a request of so many blocks, in one thread."""
    import numpy as np
    import torch

    stand_in()
    from kvshm.connectors.vllm.metadata import NOWHERE, LoadJob, Piece, SaveJob
    from kvshm.connectors.vllm.transfers import HostTransfers
    from kvshm.paged import runs_of

    blocks = int(args["blocks"])
    shape = (2, HEADS, BLOCK, WIDTH)
    if args["layout"] == "blocks":
        whole = torch.zeros((blocks, LAYERS, *shape), dtype=torch.bfloat16)
        tensors = {str(i): whole[:, i] for i in range(LAYERS)}
    else:
        tensors = {str(i): torch.zeros((blocks, *shape), dtype=torch.bfloat16)
                   for i in range(LAYERS)}
    for tensor in tensors.values():
        tensor.normal_()
    pages = runs_of(tensors, blocks)
    arena = kvshm.Arena.create(args["name"], dir=args.get("dir"), blocks=2 * blocks,
                               block_bytes=pages.slice_bytes, identity=IDENTITY, helper=False,
                               pin="off", huge=args["huge"])
    transfers = HostTransfers(arena, {0: pages}, 0, 60.0)
    rows = np.random.default_rng(3).permutation(blocks).astype(np.uint32)
    nbytes = blocks * pages.slice_bytes
    numbers = itertools.count()
    stored: list[Any] = []

    def save() -> float:
        keys = make_keys(5, next(numbers) * blocks, blocks)
        took = 0
        for at in range(0, blocks, AT_ONCE):
            with arena.allocate(len(rows[at:at + AT_ONCE]), keys=keys[at:at + AT_ONCE]) as fill:
                job = SaveJob(at, "", Piece(0, fill.handle_array, rows[at:at + AT_ONCE]))
                start = time.perf_counter_ns()
                result = transfers.save(job)
                took += time.perf_counter_ns() - start
                if result is None or result.failed_at != NOWHERE:
                    raise SystemExit(f"save: {result}")
        stored[:] = [keys]
        return nbytes / took

    def load() -> float:
        if not stored:
            save()
        with arena.match(stored[0]) as lease:
            job = LoadJob(0, "", (Piece(0, lease.handle_array, rows),), waits=True)
            start = time.perf_counter_ns()
            result = transfers.load(job)
            took = time.perf_counter_ns() - start
            if len(lease) != blocks or result.failed_at != NOWHERE:
                raise SystemExit(f"load: {len(lease)} blocks, {result}")
        return nbytes / took

    plain = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def memory() -> float:
        start = time.perf_counter_ns()
        np.copyto(*plain)
        return nbytes / (time.perf_counter_ns() - start)

    return {"save": save, "load": load, "memory": memory}


def main() -> None:
    kind, *given = sys.argv[1:]
    args = dict(one.split("=", 1) for one in given)
    steps = {"store": store, "ask": ask, "copy": copy}[kind](args)
    try:
        say({"ready": 1})
        for order in sys.stdin:
            word, number = order.split()
            took: list[float] = []
            end = time.perf_counter_ns() + int(number) * 1_000_000
            while time.perf_counter_ns() < end:
                took.append(steps[word]())
            took.sort()
            say({"median": took[len(took) // 2]})
    finally:
        if kind != "ask":
            kvshm.remove(args["name"], dir=args.get("dir"), force=True)


if __name__ == "__main__":
    main()
