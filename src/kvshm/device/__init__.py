# SPDX-License-Identifier: Apache-2.0
"""The device tier (G1): an engine's own KV blocks beside the arena's.

    layout = device.Layout(layers=32, tokens=16, heads=8, dim=128, heads_at="block")
    pool = device.Pool.of(arena, layout, blocks=4096, on="cuda:0")   # or Pool(arena, tensors, n)
    with arena.match(keys) as hit:
        loaded = pool.onboard(hit, keys[:len(hit)])   # what the pool has already is not copied
    loaded.wait(2)                                    # loaded.ids: the blocks, held
    stored = pool.offload(ids, keys)                  # what the arena has already is not copied

docs/device.md has the whole of it.
"""
from kvshm.device.layout import Layout
from kvshm.device.pool import Pool, PoolStatus
from kvshm.device.transfer import PRESENT, Transfer

__all__ = ["PRESENT", "Layout", "Pool", "PoolStatus", "Transfer"]
