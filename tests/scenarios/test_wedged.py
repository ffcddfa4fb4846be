# SPDX-License-Identifier: Apache-2.0
"""A process that lives and does not go on: what it holds is seen, is never taken from it, and is no
more than its quota."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kvshm
import pytest
from support.arenas import keys, store
from support.cli import kvshm_cli
from support.player import Player

pytest.importorskip("kvshm.tools")
pytestmark = pytest.mark.crash
BLOCKS, QUOTA = 32, 6
Players = Callable[..., Player]

WEDGED = """
    import threading
    arena = kvshm.Arena.attach({name!r}, pin='off', helper=False, label='wedged', quota={quota})
    lease = arena.match(wanted, tag='stuck')
    fill = arena.allocate(2)
"""
HOW = {
    "stopped": "",
    # A thread that never returns, in the midst of a hold: the process answers, the hold stays.
    "thread": """
        def work(lease, fill):
            while True:
                time.sleep(60)
        threading.Thread(target=work, args=(lease, fill), daemon=True).start()
        del lease, fill
    """,
}


@pytest.fixture
def arena(new_name: Callable[[], str]) -> Any:
    with kvshm.Arena.create(new_name(), blocks=BLOCKS, block_bytes=4096, pin="off",
                            reap_interval=0.05, label="survivor") as made:
        yield made


@pytest.mark.parametrize("how", HOW)
def test_seen_bounded_and_never_robbed(arena: kvshm.Arena, player: Players, how: str) -> None:
    wanted = keys(8)
    store(arena, wanted).release()
    wedged = player()
    wedged.do(f"wanted = np.array({wanted[:4].tolist()}, np.uint8)")
    wedged.do(WEDGED.format(name=arena.name, quota=QUOTA))
    held, filling = wedged.get("[int(i) for i in lease.ids]"), wedged.get("fill.ids.tolist()")
    wedged.do(HOW[how])
    error = wedged.fails("arena.allocate(1)")
    assert error.kind == "OverQuota" and f"its quota is {QUOTA}" in error.text
    if how == "stopped":
        wedged.worker.stop()
    time.sleep(1.1)  # an age that can be seen; the helper has looked many times

    # Who, how much, for how long.
    found = kvshm_cli("stat", "--json", arena.name).json
    (row,) = [p for p in found["processes"] if p["label"] == "wedged"]
    assert (row["pid"], row["alive"], row["held_blocks"], row["filling_blocks"]) == \
        (wedged.pid, True, 4, 2)
    assert row["quota_blocks"] == QUOTA
    if how == "stopped":
        assert row["condition"] == "stopped"
    (lease,) = [x for x in found["leases"] if x["tag"] == "stuck"]
    assert (lease["pid"], lease["count"]) == (wedged.pid, 4) and lease["age_seconds"] >= 1
    assert f"6 of {QUOTA}" in kvshm_cli("stat", arena.name).out

    # Everything else is had, and nothing of it.
    assert arena.reap().slots_dead == 0
    with arena.allocate(BLOCKS - 6) as fill:
        assert not set(fill.ids) & {*held, *filling}
        with pytest.raises(kvshm.NoSpace):
            arena.allocate(1, timeout=0.3)
        # A reader beside it goes on.
        with arena.match(wanted[:4]) as lease_here:
            assert [int(i) for i in lease_here.ids] == held
    assert arena.clear() == 0  # the four are held
    assert {arena.block(b).state for b in filling} == {kvshm.State.FILLING}

    if how == "stopped":
        wedged.worker.resume()
        assert wedged.get("len(lease)") == 4
        wedged.do("lease.release()\nfill.abort()\nagain = arena.allocate(6)")
    wedged.kill()
    end = time.monotonic() + 5
    while arena.stats()["slots_used"] > 1 and time.monotonic() < end:
        time.sleep(0.02)
    arena.clear()
    assert arena.stats()["blocks_free"] == BLOCKS


def test_without_a_quota_there_is_no_limit(arena: kvshm.Arena, player: Players) -> None:
    other = player()
    other.do(f"arena = kvshm.Arena.attach({arena.name!r}, pin='off', helper=False)")
    other.do(f"fill = arena.allocate({BLOCKS})")
    with pytest.raises(kvshm.NoSpace) as full:
        arena.allocate(1)
    assert not isinstance(full.value, kvshm.OverQuota)
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.Arena.attach(arena.name, quota="many")
