# SPDX-License-Identifier: Apache-2.0
"""Who is compared, what each is installed from, and what its figures stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...environments import Steps

HERE = Path(__file__).resolve().parent
KVSHM = "kvshm"

# What the caller has in hand.
SOURCES = {
    "keys": "(a) keys in hand",
    "hashes": "(b) the engine's block hashes",
    "tokens": "(c) token ids",
}


@dataclass(frozen=True)
class Peer:
    title: str
    script: str
    shared: bool  # between processes
    steps: Steps = ()  # one call of pip for each; none: it runs in our own environment
    libraries: dict[str, str] = field(default_factory=dict)  # and the Debian package of each
    programs: dict[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = tuple(SOURCES)
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return HERE / self.script


# LMCache wants some torch; the one for processors alone is enough for looking up, and if it is
# there already, none is fetched with what it brings for a GPU.
_LMCACHE = (("torch==2.13.0",), ("lmcache==0.5.6",))
_HASHED_BY_US = "(c) it cannot hash tokens: SHA-256 by the caller, a block a call, is included"

PEERS = {
    KVSHM: Peer(
        "kvshm", "drive_kvshm.py", True,
        notes=("stored by another process; keys of 16 bytes",)),
    "lmcache": Peer(
        "LMCache, in process", "drive_lmcache.py", False, _LMCACHE,
        notes=("in one process: nothing is shared with another",
               "tokens hashed by Python's hash(), its default; (b) hashes cut to 64 bits, as it "
               "does")),
    "lmcache-server": Peer(
        "LMCache server", "drive_lmcache_server.py", True, _LMCACHE, sources=("tokens",),
        notes=("takes token ids alone: no (a), no (b)", "two calls a look-up, over TCP: submit, "
               "wait")),
    "mooncake": Peer(
        "Mooncake Store", "drive_mooncake.py", True,
        (("mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy==2.2.6"),),
        libraries={"libibverbs.so.1": "libibverbs1"},
        notes=("TCP; the lease that a look-up gives is its pin", _HASHED_BY_US)),
    "redis": Peer(
        "Redis, unix socket", "drive_redis.py", True, (("redis==8.1.0", "numpy==2.2.6"),),
        programs={"redis-server": "redis-server"},
        notes=("a script in the server finds the prefix and counts pins: one round trip",
               _HASHED_BY_US)),
}

# Asked by tools/bench disk, in its own words.
DISKS = {
    "lmcache-disk": Peer("LMCache's local disk", "drive_lmcache_disk.py", False, _LMCACHE),
}
