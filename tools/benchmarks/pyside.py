# SPDX-License-Identifier: Apache-2.0
"""Roles in Python, spoken to as the native ones are (cpp/bench/bench.hpp): match, and a dict."""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

import kvshm

from . import torchside

Step = Callable[[], float]  # what it took, in ns


def make_keys(seed: int, first: int, n: int) -> np.ndarray:
    """The keys of the native roles: (n, 16) bytes."""
    halves = np.arange(2 * first, 2 * (first + n), dtype=np.uint64)
    start = mix(np.array([seed], dtype=np.uint64))
    return mix(start + halves).view(np.uint8).reshape(n, 16)


def mix(x: np.ndarray) -> np.ndarray:  # splitmix64; wraps around
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def match(args: dict[str, str]) -> dict[str, Step]:
    """One call for a request, its keys in hand."""
    arena = kvshm.Arena.attach(args["name"], dir=args.get("dir"), helper=False, pin="off")
    request = int(args["request"])
    requests = int(args["blocks"]) // request
    keys = [make_keys(1, i * request, request) for i in range(requests)]
    for some in keys:  # page tables and private counts are there
        arena.match(some).release()
    order = np.random.default_rng(7).permutation(requests)
    turn = iter(range(sys.maxsize))

    def step() -> float:
        wanted = keys[order[next(turn) % requests]]
        start = time.perf_counter_ns()
        lease = arena.match(wanted)
        end = time.perf_counter_ns()
        if len(lease) != request:
            raise SystemExit(f"{len(lease)} of {request} keys matched")
        lease.release()
        return float(end - start)

    return {"point": step, "match": step}


def dictionary(args: dict[str, str]) -> dict[str, Step]:
    """From key to id, and pins by id."""
    blocks, request = int(args["blocks"]), int(args.get("request", 512))
    whole = make_keys(1, 0, blocks).tobytes()
    keys = [whole[i:i + 16] for i in range(0, len(whole), 16)]
    ids = {key: i for i, key in enumerate(keys)}
    pins = array("I", bytes(4 * blocks))
    order = np.random.default_rng(7).permutation(blocks)
    single = [keys[i] for i in order[:1_000_000]]
    starts = [int(i) * request for i in np.random.default_rng(7).permutation(blocks // request)]
    turn = iter(range(sys.maxsize))
    batch = 1000

    def point() -> float:
        at = next(turn) * batch % max(len(single) - batch, 1)
        some = single[at:at + batch]
        start = time.perf_counter_ns()
        for key in some:
            pins[ids[key]] += 1
            pins[ids[key]] -= 1
        return (time.perf_counter_ns() - start) / len(some)

    def prefix() -> float:
        at = starts[next(turn) % len(starts)]
        some = keys[at:at + request]
        start = time.perf_counter_ns()
        for key in some:
            pins[ids[key]] += 1
        return (time.perf_counter_ns() - start) / request

    return {"point": point, "match": prefix}


def main() -> None:
    kind, *given = sys.argv[1:]
    args = dict(one.split("=", 1) for one in given)
    steps = {"match": match, "dict": dictionary, "gather": torchside.gather}[kind](args)
    say({"ready": 1})
    for order in sys.stdin:
        word, number = order.split()
        took: list[float] = []
        end = time.perf_counter_ns() + int(number) * 1_000_000
        while time.perf_counter_ns() < end:
            took.append(steps[word]())
        took.sort()
        if kind == "gather":
            say({"gb_per_cpu_second": took[len(took) // 2]})
            continue
        say({"ns": took[len(took) // 2], "per_second": 1e9 * len(took) / sum(took)})


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
