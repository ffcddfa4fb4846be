# SPDX-License-Identifier: Apache-2.0
"""Which cached blocks a prefix match can reach, as `kvshm stat` counts them."""
from kvshm.tools.cli.arenas import open_view
from kvshm.tools.inspector import chains
from support.arenas import keys, store


def told(arena):
    with open_view(arena.name, None) as view:
        found = chains.tally(view, view.words())
    return found["cached_blocks"], found["unreachable_blocks"], found["unreachable_share"]


def test_an_empty_arena(arena):
    assert told(arena) == (0, 0, None)


def test_what_is_behind_a_gap(make_arena):
    arena = make_arena(blocks=64)
    chain, other = keys(12, seed=61), keys(5, seed=62)
    store(arena, chain).release()
    store(arena, other).release()
    assert told(arena) == (17, 0, 0.0)
    assert arena.evict(chain[4:5]) == 1
    assert told(arena) == (16, 7, round(7 / 16, 4))
    assert arena.evict(other[:1]) == 1
    assert told(arena) == (15, 11, round(11 / 15, 4))
    store(arena, chain[4:5], chained=False).release()  # another block has the place of the first
    assert told(arena)[0] == 16


def test_links_in_a_circle_end(make_arena):
    """Damage: a circle of whole links has no gap, and no end."""
    arena = make_arena(blocks=8)
    store(arena, keys(3, seed=63)).release()
    with open_view(arena.name, None) as view:
        words = view.words()

        class Bent:
            hot = view.hot.copy()

        for i in range(3):
            Bent.hot["parent"][i] = (i + 1) % 3
            Bent.hot["parent_check"][i] = int(Bent.hot["key"][(i + 1) % 3, 0]) & 0xFFFFFFFF
        found = chains.tally(Bent, words)
    assert found["cached_blocks"] == 3 and found["unreachable_blocks"] == 0
