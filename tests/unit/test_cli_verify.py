# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify` on arenas broken on purpose: every invariant, by its number and its blocks."""
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm.tools.inspector import invariants, layout, objects, recheck
from kvshm.tools.inspector.view import View
from support import shm_dir
from support.cli import Copy, kvshm_cli

DEAD, LIVING = 3, 5  # slots: nobody's, and one whose life byte a test holds
FREE_ID = 60  # a block that is never used


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A quiet arena that has seen some life: 12 keyed blocks, the rest free."""
    folder = tmp_path_factory.mktemp("sound")
    name = "t-sound"
    keys = np.random.default_rng(3).integers(1, 256, (12, 16), np.uint8)
    with kvshm.Arena.create(name, dir=str(folder), blocks=64, block_bytes=64,
                            pin="off", helper=False) as arena:
        with arena.allocate(12, keys=keys) as fill:
            fill.register().release()
        assert arena.is_valid() == []
    yield folder / f"kvshm.{name}"
    shutil.rmtree(folder)


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Copy:
    return Copy(sound, tmp_path)


def word(state: int, holders: int = 0, seq: int = 1) -> int:
    return (seq & 0x7FF) << layout.GEN_SHIFT | state << layout.STATE_SHIFT | holders


def used(c: Copy) -> list[int]:
    """The keyed blocks."""
    return [int(i) for i in np.flatnonzero(c.hot["key"][:, 0])]


def set_state(c: Copy, i: int, state: int, *slots: int) -> None:
    c.hot["word"][i] = word(state, sum(1 << s for s in slots), int(c.hot["seq"][i]))
    for s in slots:  # a holder always has its region bit
        c.regions[s][0] |= 1


def entry_of(c: Copy, i: int) -> int:
    """Where the index entry of block i stands."""
    (at,) = np.flatnonzero((c.index & np.uint64(0xFFFFFFFF)) == i + 1)
    return int(at)


def free_place(c: Copy, i: int) -> int:
    """An empty place in the other bucket of block i's key."""
    lo, hi = (int(k) for k in c.hot["key"][i])
    mine = entry_of(c, i) // layout.WAYS
    buckets = {lo * c.geometry.buckets >> 64, hi * c.geometry.buckets >> 64}
    bucket = next(iter(buckets - {mine} or buckets))
    return next(at for at in range(bucket * 8, bucket * 8 + 8) if not c.index[at])


def unindex(c: Copy, i: int) -> None:
    c.index[entry_of(c, i)] = 0


# Each breaks one thing and returns the block that must be named.

def bad_state(c: Copy) -> int:
    set_state(c, FREE_ID, 5)
    return FREE_ID


def free_but_held(c: Copy) -> int:
    set_state(c, FREE_ID, layout.FREE, LIVING)
    return FREE_ID


def filling_without_holder(c: Copy) -> int:
    set_state(c, FREE_ID, layout.FILLING)
    return FREE_ID


def last_without_holder(c: Copy) -> int:
    i = used(c)[0]
    set_state(c, i, layout.READY_LAST)
    return i


def evicting_with_two(c: Copy) -> int:
    set_state(c, FREE_ID, layout.EVICTING, LIVING, LIVING + 1)
    return FREE_ID


def generation_behind(c: Copy) -> int:
    i = used(c)[1]
    c.hot["seq"][i] += 1
    return i


def stray_entry(c: Copy) -> int:
    c.index[-1] = c.geometry.blocks + 1
    return layout.NONE


def entry_of_free_block(c: Copy) -> int:
    c.index[np.flatnonzero(c.index == 0)[0]] = FREE_ID + 1
    return FREE_ID


def entry_with_other_tag(c: Copy) -> int:
    i = used(c)[2]
    c.index[entry_of(c, i)] ^= np.uint64(1 << 40)
    return i


def entry_in_other_bucket(c: Copy) -> int:
    i = used(c)[2]
    at, (lo, hi) = entry_of(c, i), (int(k) for k in c.hot["key"][i])
    right = {lo * c.geometry.buckets >> 64, hi * c.geometry.buckets >> 64}
    wrong = next(a for a in range(len(c.index)) if a // 8 not in right and not c.index[a])
    c.index[wrong], c.index[at] = c.index[at], 0
    return i


def two_of_one_key(c: Copy) -> int:
    a, b = sorted(used(c)[:2])
    unindex(c, b)
    c.hot["key"][b] = c.hot["key"][a]
    at = free_place(c, a)
    c.index[at] = (int(c.index[entry_of(c, a)]) & ~0xFFFFFFFF) | (b + 1)
    return b


def two_entries(c: Copy) -> int:
    i = used(c)[3]
    c.index[free_place(c, i)] = c.index[entry_of(c, i)]
    return i


def duplicate_with_entry(c: Copy) -> int:
    i = used(c)[4]
    set_state(c, i, layout.READY_LAST, LIVING)
    c.hot["flags"][i] |= layout.DUPLICATE
    return i


def private_not_last(c: Copy) -> int:
    i = used(c)[4]
    unindex(c, i)
    c.hot["flags"][i] |= layout.PRIVATE
    return i


def left_in_evicting(c: Copy) -> int:
    set_state(c, FREE_ID, layout.EVICTING, DEAD)
    return FREE_ID


def dead_holder(c: Copy) -> int:
    i = used(c)[5]
    set_state(c, i, layout.READY, LIVING, DEAD)
    return i


def ready_without_key(c: Copy) -> int:
    i = used(c)[6]
    unindex(c, i)
    c.hot["key"][i] = 0
    return i


def free_with_key(c: Copy) -> int:
    c.hot["key"][FREE_ID] = (7, 8)
    return FREE_ID


def not_in_free_map(c: Copy) -> int:
    c.free_map[0] &= ~np.uint64(1 << FREE_ID)
    return FREE_ID


def summary_off(c: Copy) -> int:
    c.summary[0] = 0
    return FREE_ID


def no_region_bit(c: Copy) -> int:
    i = used(c)[7]
    set_state(c, i, layout.READY, LIVING)
    c.regions[LIVING][0] = 0
    return i


def tentative_of_ready(c: Copy) -> int:
    i = used(c)[8]
    c.index[entry_of(c, i)] |= np.uint64(layout.TENTATIVE)
    return i


def tentative_of_dead(c: Copy) -> int:
    set_state(c, FREE_ID, layout.FILLING, DEAD)
    c.hot["key"][FREE_ID] = (7, 8)
    c.index[0 if not c.index[0] else 1] = layout.TENTATIVE | 7 << 32 | (FREE_ID + 1)
    return FREE_ID


def primary_not_held(c: Copy) -> int:
    primary, twin = used(c)[9], FREE_ID
    set_state(c, twin, layout.READY_LAST, LIVING)
    c.hot["key"][twin] = c.hot["key"][primary]
    c.hot["flags"][twin], c.cold["primary"][twin] = layout.DUPLICATE, primary
    return twin


def primary_of_another_key(c: Copy) -> int:
    twin = primary_not_held(c)
    set_state(c, used(c)[9], layout.READY, LIVING)
    c.hot["key"][twin] = (7, 8)
    return twin


def primary_outside(c: Copy) -> int:
    twin = primary_not_held(c)
    c.cold["primary"][twin] = 4000
    return twin


def tenant_unknown(c: Copy) -> int:
    i = used(c)[0]
    c.hot["tenant"][i] = 9
    return i


def no_tenant(c: Copy) -> int:
    i = used(c)[0]
    c.hot["tenant"][i] = 256
    return i


def priority_above(c: Copy) -> int:
    i = used(c)[0]
    c.hot["priority"][i] = 101
    return i


def expires_never(c: Copy) -> int:
    i = used(c)[0]
    c.hot["flags"][i] |= layout.MORTAL
    return i


def calms_never(c: Copy) -> int:
    i = used(c)[0]
    c.hot["priority"][i] |= layout.FOR_A_WHILE
    return i


def taken_before_made(c: Copy) -> int:
    c.lanes["head"][1] = c.lanes["tail"][1] + 1
    return layout.NONE


def ended_before_taken(c: Copy) -> int:
    c.lanes["done"][0] = c.lanes["head"][0] + 1
    return layout.NONE


def more_than_there_is_room_for(c: Copy) -> int:
    c.lanes["tail"][3] = c.lanes["done"][3] + layout.LANE_ROOM + 1
    return layout.NONE


# What is broken -> the numbers that must be reported for it, the first for the returned block.
SEEDS: dict[Callable[[Copy], int], list[int]] = {
    bad_state: [1, 8], free_but_held: [1], filling_without_holder: [1], last_without_holder: [1],
    evicting_with_two: [1], generation_behind: [2], stray_entry: [3], entry_of_free_block: [3],
    entry_with_other_tag: [3], entry_in_other_bucket: [3], two_of_one_key: [4], two_entries: [5],
    duplicate_with_entry: [5], private_not_last: [5], left_in_evicting: [6, 7], dead_holder: [7],
    ready_without_key: [9], free_with_key: [9], not_in_free_map: [10], summary_off: [10],
    no_region_bit: [11], tentative_of_ready: [12], tentative_of_dead: [12, 7],
    primary_not_held: [13], primary_of_another_key: [13], primary_outside: [13],
    tenant_unknown: [14], no_tenant: [14], priority_above: [15], expires_never: [15],
    calms_never: [15], taken_before_made: [16], ended_before_taken: [16],
    more_than_there_is_room_for: [16]}
# Held by nobody, so that the core finds the same after it attached; it does not know of summaries,
# and in its sum a state that does not exist counts as held.
FOR_CORE = {bad_state: [1], filling_without_holder: [1], last_without_holder: [1],
            generation_behind: [2], stray_entry: [3], entry_of_free_block: [3],
            entry_with_other_tag: [3], entry_in_other_bucket: [3], two_of_one_key: [4],
            two_entries: [5], private_not_last: [5], ready_without_key: [9], free_with_key: [9],
            not_in_free_map: [10], tentative_of_ready: [12], tenant_unknown: [14], no_tenant: [14],
            priority_above: [15], expires_never: [15], calms_never: [15]}


def by_number(document: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    return {i["number"]: i["findings"] for i in document["invariants"] if i["broken"]}


def test_every_invariant_is_seeded() -> None:
    assert {n for numbers in SEEDS.values() for n in numbers} == set(invariants.MEANING)


def test_sound(copy: Copy) -> None:
    result = copy.cli("verify", "--json")
    assert result.code == 0 and result.err == ""
    assert result.json["broken"] == 0 and result.json["unfindable_blocks"] == 0
    with copy.live(LIVING):
        assert copy.cli("verify").code == 0


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: s.__name__)
def test_seeded(copy: Copy, seed: Callable[[Copy], int]) -> None:
    with copy.live(LIVING), copy.live(LIVING + 1):
        block = seed(copy)
        result = copy.cli("verify", "--json")
        words = copy.cli("verify", "--all").out
    assert result.code == 1
    found = by_number(result.json)
    assert set(found) == set(SEEDS[seed])
    first = SEEDS[seed][0]
    assert (None if block == layout.NONE else block) in {f["id"] for f in found[first]}
    assert result.json["readings"] == 3  # somebody lives: it was looked at three times
    broken = [line.split()[0] for line in words.splitlines() if line.endswith("BROKEN")]
    assert broken == [f"I{n}" for n in sorted(SEEDS[seed])]
    assert block == layout.NONE or str(block) in words
    assert result.err.startswith(f"kvshm: {copy.name}: {len(found)} invariant")


@pytest.mark.parametrize("seed", FOR_CORE, ids=lambda s: s.__name__)
def test_the_core_agrees(copy: Copy, seed: Callable[[Copy], int]) -> None:
    seed(copy)
    result = copy.cli("verify", "--json", "--core")
    assert result.code == 1
    assert {b["invariant"] for b in result.json["core"]} == set(FOR_CORE[seed])


def test_evicting_of_the_living(copy: Copy) -> None:
    """In hand, not broken; but a fault where nobody should be working."""
    set_state(copy, FREE_ID, layout.EVICTING, LIVING)
    copy.hot["seq"][FREE_ID] += 1  # counted up before the word says so
    with copy.live(LIVING):
        assert copy.cli("verify", "--json").json["in_transition_blocks"] == 1
        assert copy.cli("verify").code == 0
        assert set(by_number(copy.cli("verify", "--json", "--quiet-arena").json)) == {6}


@pytest.fixture
def idler() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("seed", [not_in_free_map, summary_off, primary_not_held],
                         ids=lambda s: s.__name__)
def test_stopped_between_two_words(copy: Copy, seed: Callable[[Copy], int],
                                   idler: "subprocess.Popen[bytes]") -> None:
    """What a stopped process may have in hand is not called broken, until it goes on."""
    seed(copy)
    stat = Path(f"/proc/{idler.pid}/stat").read_text().rpartition(")")[2].split()
    record = copy.slots[LIVING]
    record["used"], record["pid"], record["start_time"] = 1, idler.pid, int(stat[19])
    record["pid_ns"] = os.stat("/proc/self/ns/pid").st_ino
    copy.regions[LIVING][0] |= 1
    with copy.live(LIVING):
        assert copy.cli("verify").code == 1  # asleep, as between any two calls
        idler.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, idler.pid, os.WSTOPPED | os.WNOWAIT)
        result = copy.cli("verify")
        assert (result.code, "is stopped" in result.out) == (0, True), result.out
        assert copy.cli("verify", "--quiet-arena").code == 1
        record["start_time"] += 1  # the slot's process is another one, of the same pid
        assert copy.cli("verify").code == 1


def test_unfindable(copy: Copy) -> None:
    """Legal, and a loss: said, but not counted as broken."""
    unindex(copy, used(copy)[0])
    result = copy.cli("verify", "--json")
    assert (result.code, result.json["unfindable_blocks"]) == (0, 1)


def view_of(copy: Copy) -> View:
    fd, verdict = objects.look_up(copy.name, str(copy.dir))
    assert fd is not None
    return View(fd, copy.name, str(copy.dir), verdict)


@pytest.mark.parametrize("mended_after, broken, readings", [(1, False, 2), (2, False, 3),
                                                            (3, True, 3)])
def test_what_passes_does_not_count(copy: Copy, monkeypatch: pytest.MonkeyPatch,
                                    mended_after: int, broken: bool, readings: int) -> None:
    block, pauses = generation_behind(copy), 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        assert seconds == 0.05
        pauses += 1
        if pauses == mended_after:
            copy.hot["seq"][block] -= 1

    monkeypatch.setattr(recheck.time, "sleep", sleep)
    with copy.live(LIVING), view_of(copy) as view:
        result = recheck.check(view)
    assert (bool(result.broken), result.readings) == (broken, readings)


def test_another_word_is_another_finding(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken in every reading, but each time differently: that is work, not damage."""
    block = generation_behind(copy)

    def sleep(seconds: float) -> None:
        copy.hot["seq"][block] += 1

    monkeypatch.setattr(recheck.time, "sleep", sleep)
    with copy.live(LIVING), view_of(copy) as view:
        assert recheck.check(view).broken == []


def test_without_the_living_one_reading_is_enough(copy: Copy) -> None:
    generation_behind(copy)
    assert copy.cli("verify", "--json").json["readings"] == 1


def test_many_are_counted_and_some_are_listed(copy: Copy) -> None:
    copy.free_map[:] = 0
    result = copy.cli("verify")
    assert "52 blocks: FREE without its bit in the free map: 12, 13," in result.out
    assert ", ..." in result.out
    assert "..." not in copy.cli("verify", "--all").out


def test_larger_than_one_region(tmp_path: Path) -> None:
    """Bits beyond the first region and the first word are found where they belong."""
    name = "t-large"
    folder = tmp_path / "source"
    folder.mkdir()
    kvshm.Arena.create(name, dir=str(folder), blocks=2 * 4096 + 70, block_bytes=0, pin="off",
                       helper=False).close()
    c = Copy(folder / f"kvshm.{name}", tmp_path)
    assert c.cli("verify").code == 0
    c.hot["seq"][8200] = 1
    c.hot["word"][8200] = word(layout.READY, 1 << LIVING)
    c.hot["key"][8200] = (7, 8)
    c.regions[LIVING][0] = 0b011  # but not the third region
    c.free_map[5000 // 64] &= ~np.uint64(1 << 5000 % 64)
    with c.live(LIVING):
        found = by_number(c.cli("verify", "--json").json)
    assert {n: [f["id"] for f in findings] for n, findings in found.items()} == {
        10: [5000], 11: [8200], 14: [8200]}


def test_arena_on_the_shm_mount(arena_name: str) -> None:
    """The way through posix_ipc, and not a byte of it changed."""
    kvshm.Arena.create(arena_name, blocks=8, block_bytes=64, pin="off", helper=False).close()
    path = shm_dir / f"kvshm.{arena_name}"
    before = path.read_bytes()
    for verb in ("stat", "verify", "reap"):
        assert kvshm_cli(verb, arena_name).code == 0
    assert path.read_bytes() == before
