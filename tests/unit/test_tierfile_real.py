# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify --tier` on files that the library wrote: the two readings of the format agree."""
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import Outcome, kvshm_cli

pytest.importorskip("xxhash")
capi = pytest.importorskip("kvshm.capi")
ffi, lib = capi.ffi, capi.lib

BYTES, BLOCKS = 6000, 48


def key(number: int) -> bytes:
    return bytes(np.random.default_rng(number).integers(1, 256, 16, np.uint8))


def payload(number: int) -> bytes:
    return np.random.default_rng(number + 1).bytes(BYTES)


def check(rc: int) -> int:
    assert rc >= 0, (rc, ffi.string(lib.kvshm_last_error()))
    return rc


class Tiered:
    """An arena with a tier, by the C API."""

    def __init__(self, name: str, paths: list[Path], slots: int = 100) -> None:
        self.name, self.paths = name, paths
        o = ffi.new("kvshm_options *", {"size": ffi.sizeof("kvshm_options")})
        o.block_bytes, o.blocks, o.numa = BYTES + 16, BLOCKS, lib.KVSHM_NUMA_AUTO
        out = ffi.new("kvshm_arena **")
        check(lib.kvshm_open(out, name.encode(), o))
        self.arena = out[0]
        t = ffi.new("kvshm_tier_options *", {"size": ffi.sizeof("kvshm_tier_options")})
        names = [ffi.new("char[]", bytes(path)) for path in paths]
        array = ffi.new("char *[]", names)
        t.paths, t.npaths, t.bytes = array, len(paths), slots * 8192 + len(paths) * 65536
        t.sync = 1
        check(lib.kvshm_tier_open(self.arena, t))
        deadline = time.monotonic() + 20
        while self.tier().state != lib.KVSHM_TIER_OK:
            assert time.monotonic() < deadline, self.tier().state
            time.sleep(0.005)

    def tier(self) -> Any:
        t = ffi.new("kvshm_tier *", {"size": ffi.sizeof("kvshm_tier")})
        check(lib.kvshm_get_tier(self.arena, t))
        return t

    def store(self, first: int, n: int) -> None:
        for number in range(first, first + n):
            h, k = ffi.new("kvshm_handle *"), ffi.new("kvshm_key[1]", [list(key(number))])
            check(lib.kvshm_allocate(self.arena, 1, k, ffi.NULL, h, ffi.NULL, ffi.NULL))
            data = payload(number) + bytes(16)
            check(lib.kvshm_copy_in(self.arena, h[0], 0, data, len(data)))
            assert lib.kvshm_register(self.arena, h, 1, ffi.NULL, lib.KVSHM_ALLOW, ffi.NULL,
                                      ffi.NULL) == 1
            check(lib.kvshm_drop(self.arena, h, 1))
            if number % 16 == 15:
                check(lib.kvshm_tier_drain(self.arena, 20000))
        check(lib.kvshm_tier_drain(self.arena, 20000))

    def close(self) -> None:
        if self.arena:
            check(lib.kvshm_close(self.arena, 5000))
            self.arena = None

    def verify(self, *argv: object) -> Outcome:
        return kvshm_cli("verify", *argv, "--json", "--tier", *self.paths)


def states(outcome: Outcome) -> dict[str, int]:
    return {name: n for name, n in outcome.json["states"].items() if n}


@pytest.fixture(params=[1, 2], ids=["one file", "two files"])
def tiered(request: pytest.FixtureRequest, arena_name: str, tmp_path: Path) -> Iterator[Tiered]:
    made = Tiered(arena_name, [tmp_path / f"t{i}" for i in range(request.param)])
    try:
        yield made
    finally:
        made.close()
        lib.kvshm_remove((made.name + "-g3").encode(), ffi.NULL, 1)


def test_what_was_stored(tiered: Tiered) -> None:
    tiered.store(0, 60)
    there = tiered.verify(tiered.name)
    assert there.code == 0, there.err
    d, t = there.json, tiered.tier()
    assert states(there) == {"empty": t.slots - 60, "ok": 60}
    assert (d["slots"], d["slot_bytes"], d["live"]) == (t.slots, t.slot_bytes, True)
    assert d["arena"] == ffi.string(t.image).decode() and d["owner_name"] == tiered.name
    assert all(f["missing_bytes"] == 0 for f in d["files"])
    tiered.close()
    alone = tiered.verify()
    assert alone.code == 0 and alone.json["live"] is False
    assert states(alone) == {"empty": d["slots"] - 60, "ok": 60}


def test_more_than_it_has_room_for(tiered: Tiered) -> None:
    """Slots were used again and again: none is damaged, for the arena or for the file alone."""
    slots = tiered.tier().slots
    tiered.store(0, int(slots) * 2)
    there = tiered.verify(tiered.name)
    assert there.code == 0, there.json["findings"]
    assert states(there).get("ok", 0) > slots // 2
    tiered.close()
    assert tiered.verify().code == 0


def test_damage(tiered: Tiered) -> None:
    tiered.store(0, 40)
    tiered.close()
    path = tiered.paths[-1]
    data = path.read_bytes()
    found = [n for n in range(40) if payload(n) in data][:3]
    with open(path, "r+b") as f:
        for number in found:
            f.seek(data.index(payload(number)) + 1234)
            f.write(bytes([payload(number)[1234] ^ 4]))
    outcome = tiered.verify()
    assert outcome.code == 1 and len(found) == 3
    assert {f["key"] for f in outcome.json["findings"]} == {key(n).hex() for n in found}
    assert {f["state"] for f in outcome.json["findings"]} == {"checksum"}


def test_cleared(tiered: Tiered) -> None:
    tiered.store(0, 30)
    assert check(lib.kvshm_tier_clear(tiered.arena, 20000)) == 30
    assert states(tiered.verify(tiered.name)) == {"empty": tiered.tier().slots}


def test_adopted(tiered: Tiered) -> None:
    """The machine starts anew: memory is gone, the file is another arena's now."""
    tiered.store(0, 30)
    before = tiered.verify(tiered.name)
    owner = before.json["owner"]
    assert "behind" not in states(before)  # sync=1: what can be found is in the file
    tiered.close()
    for name in (tiered.name, tiered.name + "-g3"):
        lib.kvshm_remove(name.encode(), ffi.NULL, 1)
    again = Tiered(tiered.name, tiered.paths)
    try:
        outcome = again.verify(again.name)
        assert outcome.json["owner"] != owner and states(outcome)["ok"] == 30
        assert [c["state"] for c in outcome.json["files"][0]["superblocks"]] == ["good", "good"]
        assert outcome.json["files"][0]["sequence"] == 2
    finally:
        again.close()


KILLED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import importlib.util
spec = importlib.util.spec_from_file_location("real", {module!r})
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
tiered = real.Tiered({name!r}, [Path(p) for p in {paths!r}])
print("ready", flush=True)
number = 1000
while True:
    tiered.store(number, 1)
    number += 1
"""


@pytest.mark.crash
def test_killed_in_the_midst_of_writes(tiered: Tiered) -> None:
    """For the arena no slot is damaged, however its writers died; and while one writes."""
    for round_ in range(3):
        code = KILLED.format(path=sys.path, module=__file__, name=tiered.name,
                             paths=[str(p) for p in tiered.paths])
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout and writer.stdout.readline() == "ready\n"
            time.sleep(0.2)
            beside = tiered.verify(tiered.name)
            assert beside.code == 0, beside.json["findings"]
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(30)
        check(lib.kvshm_reap(tiered.arena, ffi.NULL))
        after = tiered.verify(tiered.name)
        assert after.code == 0, after.json["findings"]
