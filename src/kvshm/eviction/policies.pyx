# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The arena's own policy: a small table in shared memory that every allocation goes by.

Among a sample of inactive blocks those of the lowest `rank[uses]` come first, and of these the one
with the greatest `age >> shift[uses]` goes, where age is the number of releases since its last one,
and uses its aged count of uses, 1-15: being stored is the first. So the table says whose turn is
before whose, and how many times longer a block used that often is kept. From the block chosen the
library walks to a cached leaf of its chain, whatever the table says.
"""
from collections.abc import Sequence
from dataclasses import dataclass

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_POLICY_LEAF_QUEUE, KVSHM_POLICY_MEMORY, KVSHM_POLICY_ONCE,
                           KVSHM_POLICY_QUEUES, KVSHM_POLICY_SECOND_CHANCE, KVSHM_POLICY_SKETCH,
                           KVSHM_POLICY_TOUCHES, kvshm_get_policy, kvshm_policy,
                           kvshm_policy_init, kvshm_set_policy)
from kvshm.convert cimport fail

from kvshm.errors import InvalidArgument, wrong_size

_FLAGS = {"second_chance": KVSHM_POLICY_SECOND_CHANCE, "memory": KVSHM_POLICY_MEMORY,
          "sketch": KVSHM_POLICY_SKETCH, "once": KVSHM_POLICY_ONCE,
          "leaf_queue": KVSHM_POLICY_LEAF_QUEUE, "queues": KVSHM_POLICY_QUEUES,
          "touches": KVSHM_POLICY_TOUCHES}


@dataclass(frozen=True)
class Policy:
    """A policy table.

    name: up to 31 ASCII characters, for the inspector. sample: blocks looked at for each victim,
    1-64. shift: 16 numbers, 0-31; rank: 16 numbers, 0-100; both by uses. age_period: uses are
    halved every so many uses per block of the arena; 0: never. version: of the table that was
    read; counted up by each set_policy, ignored there.

    second_chance: a block used since the hand last came by is spared once. memory: uses of evicted
    keys are remembered, in a tagged table, or with sketch in a count-min sketch. once: age counts
    from the first release of a block's life. leaf_queue: the age of a parent begins when its last
    child goes. queues: a small queue of `small` / 1024 of the blocks and a main one, as in
    S3-FIFO; with 1024 one queue, as CLOCK.
    young, in 1/1024 of the blocks: of the blocks of rank 0 the youngest goes that was released
    so many releases ago; 0: the oldest. touches: uses are recorded for a controller.
    """

    name: str
    shift: tuple = (0,) * 16
    rank: tuple = (0,) * 16
    sample: int = 24
    age_period: int = 7
    second_chance: bool = False
    memory: bool = False
    sketch: bool = False
    once: bool = False
    leaf_queue: bool = False
    queues: bool = False
    touches: bool = False
    young: int = 0
    small: int = 512
    version: int = 0

    def __post_init__(self):
        if not 0 < len(self.name.encode("ascii", "replace")) < 32 or not self.name.isascii():
            raise InvalidArgument(f"policy: name: 1 to 31 ASCII characters, got {self.name!r}")
        for what, most in (("shift", 31), ("rank", 100)):
            table = getattr(self, what)
            if not isinstance(table, Sequence) or len(table) != 16:
                raise wrong_size(f"policy: {what}: numbers", 16, len(table))
            object.__setattr__(self, what, tuple(int(s) for s in table))
            if not all(0 <= s <= most for s in getattr(self, what)):
                raise InvalidArgument(f"policy: {what}: expected 0 to {most}, got {table}")
        for what, least, most in (("sample", 1, 64), ("age_period", 0, 0xffffffff),
                                  ("young", 0, 1023), ("small", 0, 1024)):
            if not least <= getattr(self, what) <= most:
                raise InvalidArgument(
                    f"policy: {what}: expected {least} to {most}, got {getattr(self, what)}")


def levels(*pairs):
    """A table from (uses, value) pairs: each holds from its number of uses on."""
    table = [0] * 16
    for start, value in sorted(pairs):
        table[start:] = [value] * (16 - start)
    return tuple(table)


def multi_lru(warm=3, hot=8, very_hot=15, sketch=False):
    """Four lists by remembered uses, each in the order of the last use; the lowest that has a block
    gives it. A block used again is in the list of its new count at once."""
    if not 0 < warm <= hot <= very_hot <= 15:
        raise InvalidArgument(f"multi_lru: expected 0 < warm <= hot <= very hot <= 15, got {warm}, "
                              f"{hot}, {very_hot}")
    return Policy("multi_lru", rank=levels((warm, 1), (hot, 2), (very_hot, 3)), memory=True,
                  sketch=sketch)


_LEVELS = (2, 6, 15)

WEIGHTS = (
    {},  # age alone
    {"shift": levels(*zip(_LEVELS, (1, 2, 3)))},
    {"shift": levels(*zip(_LEVELS, (2, 4, 6)))},
    {"rank": levels(*zip(_LEVELS, (1, 2, 3)))},
    {"rank": levels(*zip(_LEVELS, (2, 3, 4))), "young": 10},
)
"""What `adaptive` chooses among: a block of the next level of use (2, 6, 15) may be 1, 2, 4 times
as old, or goes after all of the lower ones; and admission: of the lowest level the youngest goes
that is older than 1 % of the blocks, so that a scan takes its own blocks and no others."""

START_WEIGHT = 2  # kStartWeight of the library: a scan does not take what is used


def weighted(weight):
    """The table of `adaptive` with one of WEIGHTS."""
    return Policy("adaptive", memory=True, touches=True, **WEIGHTS[weight])


PRESETS = {
    # Aged frequency, its weight chosen from WEIGHTS by what small shadow caches would have hit.
    "adaptive": weighted(START_WEIGHT),
    # The longest unused goes.
    "lru": Policy("lru"),
    # The least used goes, of equally used ones the longest unused; counts never age.
    "lfu": Policy("lfu", rank=tuple(range(16)), age_period=0),
    # The longest here goes.
    "fifo": Policy("fifo", once=True),
    # The longest here, but who was used since begins again.
    "clock": Policy("clock", queues=True, once=True, small=1024),
    # Two queues: the small one lets go of what was used once.
    "s3fifo": Policy("s3fifo", queues=True, once=True, memory=True, age_period=4),
    "multi_lru": multi_lru(),
    # Leaves only, the longest unused first (the walk to a leaf makes lru the same).
    "lineage": Policy("lineage"),
    # Leaves only, in the order in which they became leaves.
    "lineage-fifo": Policy("lineage-fifo", leaf_queue=True),
    # A block seen twice may be twice as old, one seen 6 times 4 times, one seen 15 times 8 times.
    "freqage": Policy("freqage", shift=levels((2, 1), (6, 2), (15, 3)), memory=True),
}
"""Tables by name. "adaptive" is what a new arena has."""


def get_policy(Attachment arena not None):
    """The table that the arena goes by now: a Policy."""
    cdef kvshm_policy c
    cdef int rc
    arena.alive()
    c.size = sizeof(c)
    rc = kvshm_get_policy(arena.ptr, &c)
    if rc < 0:
        fail(rc, "policy")
    return Policy(c.name.decode("ascii", "replace"), tuple(c.shift[i] for i in range(16)),
                  tuple(c.rank[i] for i in range(16)), c.sample, c.age_period,
                  young=c.young, small=c.small, version=c.version,
                  **{name: bool(c.flags & bit) for name, bit in _FLAGS.items()})


def set_policy(Attachment arena not None, policy):
    """Make all processes of the arena go by `policy`: a Policy, or the name of a preset. Takes
    effect with the next allocation; returns the table as it is now, with its new version."""
    cdef kvshm_policy c
    cdef int rc
    arena.alive()
    if isinstance(policy, str):
        if policy not in PRESETS:
            raise InvalidArgument(f"policy: expected one of {sorted(PRESETS)}, got {policy!r}")
        policy = PRESETS[policy]
    fill_in(&c, policy)
    rc = kvshm_set_policy(arena.ptr, &c)
    if rc < 0:
        fail(rc, f"set policy {policy.name!r}")
    return get_policy(arena)


cdef int fill_in(kvshm_policy *c, object policy) except -1:
    cdef int i
    cdef bytes name = policy.name.encode("ascii")
    c[0] = kvshm_policy_init()
    for i in range(len(name)):
        c.name[i] = name[i]
    c.sample = policy.sample
    c.age_period = policy.age_period
    c.young = policy.young
    c.small = policy.small
    c.flags = 0
    for flag, bit in _FLAGS.items():
        if getattr(policy, flag):
            c.flags |= bit
    for i in range(16):
        c.shift[i] = policy.shift[i]
        c.rank[i] = policy.rank[i]
    return 0
