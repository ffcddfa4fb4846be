# SPDX-License-Identifier: Apache-2.0
"""S41, S42: two block sizes are two arenas; the index does not grow with what passes through."""
import random
import time

import kvshm
import pytest
from support.oracle import raw_keys, store, verify, wrong_blocks

SMALL, LARGE = 192 << 10, 1536 << 10


@pytest.mark.slow
def test_two_block_sizes(new_name, rounds):
    """S41: churn in both, then all demand on one; figures are each arena's own."""
    chance = random.Random(41)
    with (kvshm.Arena.create(new_name(), size="16MiB", block_bytes=SMALL, helper=False) as small,
          kvshm.Arena.create(new_name(), size="32MiB", block_bytes=LARGE, helper=False) as large):
        for arena, other in ((small, LARGE), (large, SMALL)):
            with pytest.raises(kvshm.LayoutMismatch) as refused:
                kvshm.Arena.open(arena.name, size="16MiB", block_bytes=other)
            text = str(refused.value)
            assert str(SMALL) in text and str(LARGE) in text and "another name" in text
        stored = {small.name: 0, large.name: 0}
        for _ in range(rounds(600, 1_000_000)):
            arena = chance.choice((small, large))
            keys = raw_keys(chance.randrange(arena.blocks * 3), 1)
            with arena.match(keys) as hit:
                if len(hit):
                    assert chance.random() > 0.1 or verify(hit, keys) == []
                else:
                    store(arena, keys).release()
                    stored[arena.name] += 1
        for arena in (small, large):
            stats = arena.stats()
            assert stats.registered_total == stored[arena.name] > 0
            assert stats.blocks_total == arena.blocks
            assert arena.is_valid() == [] and wrong_blocks(arena) == []
        # All demand shifts to the small size: it can use all of its arena, whatever lies there.
        before = large.stats()
        held = [store(small, raw_keys(10_000 + n, 1)) for n in range(small.blocks)]
        assert small.stats().blocks_held == small.blocks
        with pytest.raises(kvshm.NoSpace):
            small.allocate(1)
        assert dict(large.stats()) == dict(before), "the other arena's figures are its own"
        for lease in held:
            lease.release()


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


@pytest.mark.slow
def test_index_is_bounded(arena_name, rounds):
    """S42: distinct keys stream through; nothing of the evicted ones stays."""
    blocks = rounds(2_000, 10_000)
    total = rounds(60_000, 2_000_000)
    with kvshm.Arena.create(arena_name, blocks=blocks, block_bytes=64, helper=False) as arena:
        info = arena.info()
        # what docs/design.md says of the metadata: 160 bytes a block and about 2.5 MiB fixed
        assert info.metadata_bytes <= 160 * blocks + (2.6 * (1 << 20)) + 4096 * 13
        sizes, times = [], []
        step = 500
        for first in range(0, total, step):
            keys = raw_keys(first, step)
            with arena.allocate(step, keys=keys) as fill:
                fill.register().release()
            started = time.perf_counter()
            arena.match(keys).release()
            times.append(time.perf_counter() - started)
            if first % (total // 10) == 0:
                sizes.append(resident())
                # the entries of evicted blocks are gone: only what is cached can be found
                shown = arena.presence(raw_keys(0, first + step)).astype(bool).sum()
                assert shown <= blocks
                assert not arena.presence(raw_keys(total + first, step)).any()
        assert arena.info().bytes == info.bytes
        tenth = len(times) // 10
        early, late = sorted(times[tenth:2 * tenth]), sorted(times[-tenth:])
        assert late[tenth // 2] < 4 * early[tenth // 2] + 1e-3, "lookup time is flat"
        assert sizes[-1] - sizes[2] < 4 << 20, f"memory is flat: {sizes}"
        assert arena.stats().evicted_total >= total - blocks
        assert arena.is_valid() == []
