# SPDX-License-Identifier: Apache-2.0
"""S01: owner and clients killed at once, and started again, without anybody cleaning up."""
import os
from pathlib import Path

import kvshm
import pytest
from support import shm_dir

SIZE = 16 << 20
OPEN = f"a = kvshm.Arena.open({{name!r}}, size={SIZE}, block_bytes=4096, identity={{identity}})"


def used(name):
    return sum(p.stat().st_blocks * 512 for p in shm_dir.glob(f"kvshm.{name}*"))


def start_all(player, name, identity):
    crew = [player() for _ in range(3)]
    code = OPEN.format(name=name, identity=identity)
    for one in crew:
        one.send(code)
    for one in crew:
        one.answer()
    return crew


def one_round(player, name, identity, real_name, number):
    crew = start_all(player, name, identity)
    created = [one.get("a.info().created") for one in crew]
    assert sum(created) == (number == 0), "one process makes the arena, once"
    assert used(real_name) <= SIZE + 4096
    crew[0].do(f"""
        first = {number} * 1000
        a.clear()
        lease = store(a, raw_keys(first, a.blocks // 2))
        fill = a.allocate(16)
    """)
    for one in crew[1:]:
        assert one.get(f"len(a.match(raw_keys({number * 1000}, 100)))") == 100
    for one in crew:
        one.worker.process.send_signal(9)
    for one in crew:
        one.kill()


@pytest.mark.crash
@pytest.mark.parametrize("how", ["automatic", "fixed"])
def test_rounds(player, new_name, rounds, how):
    identity = f"kvshm.Identity(model='s01-{os.getpid()}', weights='w')"
    name = "auto" if how == "automatic" else new_name()
    real = kvshm.auto_name(eval(identity)) if how == "automatic" else name
    try:
        for number in range(rounds(5, 30)):
            one_round(player, name, identity, real, number)
        last = player()
        last.do(OPEN.format(name=name, identity=identity) + "; a.reap()")
        stats = last.get("dict(a.stats())")
        assert stats["blocks_held"] == stats["blocks_filling"] == 0, "nothing stays held"
        assert last.get("a.is_valid()") == []
        assert last.get("wrong_blocks(a)") == []
    finally:
        kvshm.remove(real, force=True)
    assert used(real) == 0


@pytest.mark.crash
def test_a_survivor_keeps_the_arena(player, arena_name):
    crew = start_all(player, arena_name, None)
    survivor = crew.pop()
    survivor.do("lease = store(a, raw_keys(0, 50))")
    for one in crew:
        one.do("b = store(a, raw_keys(100 + a.slot * 1000, 50)); f = a.allocate(5)")
    dead = [one.pid for one in crew]
    for one in crew:
        one.kill()
    newcomers = start_all(player, arena_name, None)
    newcomer = newcomers[0]
    assert not newcomer.get("a.info().created"), "the living arena is joined, not made anew"
    assert survivor.get("verify(lease, raw_keys(0, 50))") == []
    assert newcomer.get("len(a.match(raw_keys(0, 50)))") == 50
    survivor.do("a.reap()")
    # Each dead process is named once, by who gave its things back, with what that was.
    lines = [t for one in [survivor, *newcomers] for t in one.get("[t for _, t in log]")]
    for pid in dead:
        line, = [t for t in lines if f"process {pid} " in t]
        assert arena_name in line and "50 holds, 5 fills" in line
    stats = survivor.get("dict(a.stats())")
    assert (stats["reaped_slots_total"], stats["reaped_holds_total"]) == (2, 100)
    assert stats["reaped_fills_total"] == 10
    with pytest.raises(kvshm.Busy, match="attached"):
        kvshm.remove(arena_name)
    assert Path(shm_dir, f"kvshm.{arena_name}").exists()
