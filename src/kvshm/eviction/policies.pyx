# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The arena's own policy: a small table in shared memory that every allocation goes by.

Among a sample of inactive blocks the one with the greatest `age >> shift[frequency]` goes, where
age is the number of releases since its last one, and frequency its aged count of uses, 0-15. So the
table says how many times longer a block used that often is kept. From the block chosen the library
walks to a cached leaf of its chain, whatever the table says.
"""
from collections.abc import Sequence
from dataclasses import dataclass

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (kvshm_get_policy, kvshm_policy, kvshm_policy_init,
                           kvshm_set_policy)
from kvshm.convert cimport fail

from kvshm.errors import InvalidArgument, wrong_size


@dataclass(frozen=True)
class Policy:
    """A policy table.

    name: up to 31 ASCII characters, for the inspector. shift: 16 numbers, 0-31. sample: blocks
    looked at for each victim, 1-64. second_chance: a block used since the hand last came by is
    spared once. age_period: frequencies halve every so many allocations per block of the arena;
    0: never. version: of the table that was read; counted up by each set_policy, ignored there.
    """

    name: str
    shift: tuple = (0,) * 16
    sample: int = 20
    second_chance: bool = False
    age_period: int = 10
    version: int = 0

    def __post_init__(self):
        if not 0 < len(self.name.encode("ascii", "replace")) < 32 or not self.name.isascii():
            raise InvalidArgument(f"policy: name: 1 to 31 ASCII characters, got {self.name!r}")
        if not isinstance(self.shift, Sequence) or len(self.shift) != 16:
            raise wrong_size("policy: shift: numbers", 16, len(self.shift))
        object.__setattr__(self, "shift", tuple(int(s) for s in self.shift))
        if not all(0 <= s <= 31 for s in self.shift):
            raise InvalidArgument(f"policy: shift: expected 0 to 31, got {self.shift}")
        if not 1 <= self.sample <= 64:
            raise InvalidArgument(f"policy: sample: expected 1 to 64, got {self.sample}")
        if not 0 <= self.age_period <= 0xffffffff:
            raise InvalidArgument(f"policy: age_period: {self.age_period}")


def levels(*pairs):
    """A shift table from (frequency, shift) pairs: each holds from its frequency on."""
    table = [0] * 16
    for start, shift in sorted(pairs):
        table[start:] = [shift] * (16 - start)
    return tuple(table)


PRESETS = {
    # The longest unused goes.
    "lru": Policy("lru"),
    # The same, but who was used since the hand came by is spared once.
    "clock": Policy("clock", second_chance=True),
    # Four levels of use; the longest unused of the lowest level that has any.
    "lfu": Policy("lfu", shift=levels((2, 10), (6, 20), (15, 30))),
    # A block seen twice may be twice as old, one seen 6 times 4 times, one seen 15 times 8 times.
    "freqage": Policy("freqage", shift=levels((2, 1), (6, 2), (15, 3))),
}
"""Tables by name. "clock" is what a new arena has; eviction by age alone strands what is used
often, by frequency alone what is new: "freqage" is between the two."""


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
                  c.sample, bool(c.second_chance), c.age_period, c.version)


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
    _fill_in(&c, policy)
    rc = kvshm_set_policy(arena.ptr, &c)
    if rc < 0:
        fail(rc, f"set policy {policy.name!r}")
    return get_policy(arena)


cdef int _fill_in(kvshm_policy *c, object policy) except -1:
    cdef int i
    cdef bytes name = policy.name.encode("ascii")
    c[0] = kvshm_policy_init()
    for i in range(len(name)):
        c.name[i] = name[i]
    c.sample = policy.sample
    c.second_chance = bool(policy.second_chance)
    c.age_period = policy.age_period
    for i in range(16):
        c.shift[i] = policy.shift[i]
    return 0
