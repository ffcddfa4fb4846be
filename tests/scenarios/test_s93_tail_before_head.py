# SPDX-License-Identifier: Apache-2.0
"""S93: 10,000 chat-like requests of 10 to 200 blocks through a cache of 20 % of the set: what is
there can be reached. Two processes serve them, with `adaptive` from each of its weights on."""
import json

import kvshm
import numpy as np
import pytest
from kvshm.eviction import set_policy
from kvshm.eviction.policies import WEIGHTS, weighted
from support.oracle import raw_keys

REQUESTS, PART = 10_000, 1000
SERVE = """
from kvshm.eviction import adaptive
from kvshm.eviction.serving import serve
a = kvshm.Arena.attach({name!r}, helper=False)
load = np.load({path!r})
keys, bounds = raw_keys(0, int(load["blocks"]))[load["ids"]], load["bounds"]
def part(first, last):  # every second request; a step of the controller every 32 of them
    for i in range(first, last, 2):
        serve(a, keys[bounds[i]:bounds[i + 1]], bounds[i:i + 2] - bounds[i], np.zeros(1, np.int32))
        if i % 64 < 2:
            adaptive.step(a)
"""


def chat(requests, seed=93):
    """Block numbers of each request, and each block's parent, always a lower number, or -1."""
    chance = np.random.default_rng(seed)
    live, chains, parents = [], [], [*([-1, *range(7)] + [-1, *range(8, 15)])]

    def longer(chain, by):
        fresh = np.arange(len(parents), len(parents) + by)
        parents.extend([int(chain[-1]), *fresh[:-1].tolist()])
        return np.concatenate([chain, fresh])

    while len(chains) < requests:
        if len(live) < 40 or chance.random() < 0.12:
            prompt = np.arange(8) + 8 * int(chance.integers(2))
            live.append(longer(prompt, int(chance.integers(2, 60))))
            chains.append(live[-1])
            continue
        at = len(live) - 1 - min(int(chance.exponential(60)), len(live) - 1)
        by = int(chance.integers(1, 12))
        if len(live[at]) + by > 200:
            live.pop(at)
            continue
        live[at] = longer(live[at], by)
        chains.append(live[at])
    return chains, np.array(parents)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    chains, parents = chat(REQUESTS)
    lengths = [len(chain) for chain in chains]
    assert min(lengths) >= 10 and max(lengths) <= 200
    path = tmp_path_factory.mktemp("s93") / "load.npz"
    np.savez(path, ids=np.concatenate(chains), bounds=np.cumsum([0, *lengths]),
             blocks=len(parents))
    return str(path), parents


def reachable(arena, parents):
    """The share of the blocks here whose ancestors are here, too."""
    here = (arena.presence(raw_keys(0, len(parents))) & 1) != 0
    whole = here.copy()
    for block, parent in enumerate(parents.tolist()):
        if parent >= 0:
            whole[block] &= whole[parent]
    return whole.sum() / here.sum()


@pytest.mark.parametrize("weight", range(len(WEIGHTS)))
def test_what_is_resident_can_be_reached(arena_name, player, load, weight):
    path, parents = load
    with kvshm.Arena.create(arena_name, blocks=len(parents) // 5, block_bytes=0, pin="off",
                            helper=False) as arena:
        set_policy(arena, weighted(weight))
        two = [player(), player()]
        for one in two:
            one.do(SERVE.format(name=arena.name, path=path))
        shares = []
        for first in range(0, REQUESTS, PART):
            for i, one in enumerate(two):
                one.send(f"part({first + i}, {first + PART})")
            for one in two:
                one.answer()
            shares.append(round(float(reachable(arena, parents)), 4))
        print(json.dumps({weight: shares}))
        assert min(shares) >= 0.95, shares
        assert arena.stats().evicted_total > 2 * arena.blocks
        assert arena.is_valid() == []
