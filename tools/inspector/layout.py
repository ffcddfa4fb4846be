# SPDX-License-Identifier: Apache-2.0
"""Layout 1 in numbers: constants, the geometry as a function of sizes, the layout hash.

docs/format.md draws it. Nothing here needs numpy, so that `kvshm list` starts fast.
"""
from __future__ import annotations

from typing import NamedTuple

MAGIC = int.from_bytes(b"anKVSHM1", "little")
LAYOUT = 1
NONE = 0xFFFFFFFF
PAGE, HUGE_PAGE = 4096, 2 << 20
SLOTS = 48
REGION_BLOCKS = 4096
LEASE_LINES, TOUCH_RING, HISTOGRAMS, BUCKETS = 1024, 2048, 8, 64
TENANTS, MARKS, EVENTS, WAYS, STAT_ROOM = 256, 8192, 4096, 8, 64
LANES, LANE_ROOM = 4, 2048

# Bytes of each record. Their fields stand in dtypes.py.
SUPERBLOCK, SLOT, HOT, COLD, POLICY = 4096, 37568, 64, 64, 128
TENANT, MARK, EVENT, GHOST, USES, FOREIGN = 64, 16, 64, 16, 64, 1056
SHADOW_HEADER, SHADOWS, SHADOW_WAYS = 512, 5, 32
TIER, TIER_LINE = 544, 64
LANE, LANE_ENTRY, MOVER = 128, 32, 64
QUEUES = MOVER + LANES * (LANE + LANE_ROOM * LANE_ENTRY)
TIER_AT = 3520
TIER_PATH_AT = TIER_AT + 32
POLICY_AT, IDENTITY_AT, STATS_AT, LEASES_AT = 1600, 572, 192, 4800

# Flags of the policy table.
POLICY_FLAGS = ("second_chance", "memory", "sketch", "once", "leaf_queue", "queues", "touches")
POLICY_TOUCHES = 64

# The block word.
STATE_SHIFT, CLOCK_SHIFT, GEN_SHIFT = 48, 51, 53
HOLDERS = (1 << 48) - 1
GEN_MASK = 0x7FF
FREE, FILLING, READY, EVICTING, READY_LAST = 0, 1, 2, 3, 6
STATES = {FREE: "FREE", FILLING: "FILLING", READY: "READY", EVICTING: "EVICTING",
          READY_LAST: "READY_LAST"}
DUPLICATE, ANNOUNCED, FAILED, PRIVATE, MORTAL = 1, 2, 4, 8, 128
PINNED, FOR_A_WHILE = 100, 128  # of a priority
COUNTED, SHARED = 1, 2  # limits of the superblock

# An index entry: [tentative:1 | tag:31 | id + 1: 32].
TENTATIVE = 1 << 63
TAG_MASK = 0x7FFFFFFF


class Geometry(NamedTuple):
    """As it stands in the superblock: sizes, then offsets of the sections, from the beginning."""

    bytes: int
    block_bytes: int
    blocks: int
    buckets: int
    slots_off: int
    regions_off: int
    hot_off: int
    cold_off: int
    index_off: int
    free_off: int
    summary_off: int
    ghost_off: int
    uses_off: int
    shadow_off: int
    tenants_off: int
    marks_off: int
    events_off: int
    queues_off: int
    data_off: int
    region_words: int


def policy_flags(flags: int) -> list[str]:
    return [name for i, name in enumerate(POLICY_FLAGS) if flags >> i & 1]


def ghost_places(blocks: int) -> int:
    """Places of the memory of keys that left, in sets of four."""
    return _up(max(blocks // 4, min(blocks, 4096)), 4)


def uses_lines(blocks: int) -> int:
    """Lines of the memory of how often they were used."""
    return (blocks * 3 + 15) // 16


def shadow_bits(blocks: int) -> int:
    """They see one key in 2^n."""
    return 0 if blocks <= 4096 else 3 if blocks <= 65536 else 5


def shadow_bytes(blocks: int) -> int:
    """Of the shadow caches of the adaptive policy."""
    entries = blocks >> shadow_bits(blocks)
    sets = entries // SHADOW_WAYS or 1
    return SHADOW_HEADER + sets * (entries // sets) * SHADOWS * 8


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def geometry(block_bytes: int, blocks: int, page: int, size: int = 0) -> Geometry | None:
    """Where everything lies in an arena of so many blocks; None if no arena can be like that.

    `size` is what the arena says it occupies (it may be larger than needed); 0 = the least.
    """
    if block_bytes % 64 or block_bytes > 1 << 56 or not 0 < blocks <= 0xFFFFFFF0:
        return None
    if blocks * block_bytes > 1 << 56:
        return None
    buckets = blocks // 4 + 2
    region_words = _up(_up(blocks, REGION_BLOCKS) // REGION_BLOCKS, 512) // 64
    sections = [SLOT * SLOTS, region_words * 8 * SLOTS, blocks * HOT, blocks * COLD,
                buckets * WAYS * 8, _up(_up(blocks, 64) // 64, 64) * 8, region_words * 8,
                ghost_places(blocks) * GHOST, uses_lines(blocks) * USES, shadow_bytes(blocks),
                TENANTS * TENANT, MARKS * MARK, EVENTS * EVENT, QUEUES]
    at, offsets = SUPERBLOCK, []
    for length in sections:
        offsets.append(at)
        at = _up(at + length, PAGE)
    align = max(HUGE_PAGE if blocks * block_bytes >= 16 * HUGE_PAGE else PAGE, page)
    data = _up(at, align)
    end = _up(data + blocks * block_bytes, page)
    if size and size < end:
        return None
    return Geometry._make([size or end, block_bytes, blocks, buckets, *offsets, data, region_words])


def block_metadata_bytes(g: Geometry) -> int:
    """What a block more costs, times the blocks: descriptors, memory of its eviction, index
    entries, a bit of the free map. Rounding is counted as fixed."""
    shadow = g.blocks * SHADOWS * 8 >> max(3, shadow_bits(g.blocks))
    return (g.blocks * (HOT + COLD + GHOST // 4 + 12) + shadow
            + g.blocks // 4 * WAYS * 8 + g.blocks // 8)


def fixed_bytes(g: Geometry) -> int:
    """All other metadata: superblock, slots, tables; not the gap that aligns the data."""
    return _up(g.queues_off + QUEUES, PAGE) - block_metadata_bytes(g)


def layout_hash() -> int:
    """FNV-1a, one step a 64-bit number, over the sizes and constants of this layout."""
    facts = [LAYOUT, SLOTS, SUPERBLOCK, SLOT, HOT, COLD, len(Geometry._fields) * 8, POLICY, TENANT,
             MARK, EVENT, QUEUES, GHOST, USES, SHADOW_HEADER, SHADOWS, SHADOW_WAYS, REGION_BLOCKS,
             LEASE_LINES, TOUCH_RING, HISTOGRAMS * BUCKETS, WAYS, TENANTS, MARKS, EVENTS, STAT_ROOM,
             POLICY_AT, IDENTITY_AT, STATS_AT, LEASES_AT]
    h = 1469598103934665603
    for fact in facts:
        h = (h ^ fact) * 1099511628211 % (1 << 64)
    return h
