# SPDX-License-Identifier: Apache-2.0
"""The inspector on arenas whose processes are working, stopped or dead."""
import os
import signal
import time
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm.tools.inspector import locks
from support import Worker, shm_dir
from support.cli import Outcome, kvshm_cli, spawn_cli

pytestmark = pytest.mark.crash

# Holds 3 of 6 keyed blocks and fills 2 more, one of them announced. No helper thread: nobody may
# reap behind the test's back.
HOLDER = """
    import sys, kvshm, numpy as np
    arena = kvshm.Arena.open(sys.argv[1], blocks=32, block_bytes=4096, pin="off", helper=False,
                             label=sys.argv[2])
    keys = np.random.default_rng(7).integers(1, 256, (8, 16), np.uint8)
    if arena.presence(keys[:1])[0] == 0:
        arena.allocate(6, keys=keys[:6]).register().release()
    lease = arena.match(keys[:3], tag="held")
    fill = arena.allocate(1, keys=keys[6:7]), arena.allocate(1)
    say([len(lease), arena.slot])
    while hear() == "go on":
        lease.release()
        lease = arena.match(keys[:3], tag="held")
        say("done")
"""

# Works as hard as it can on few blocks: everything is evicted all the time.
BUSY = """
    import sys, time, kvshm, numpy as np
    arena = kvshm.Arena.open(sys.argv[1], blocks=24, block_bytes=64, pin="off", helper=True,
                             label="busy")
    rng = np.random.default_rng(int(sys.argv[2]))
    pool = np.random.default_rng(1).integers(1, 256, (60, 16), np.uint8)
    say("ready")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        at = int(rng.integers(0, 54))
        keys = pool[at:at + int(rng.integers(1, 6))]
        lease = arena.match(keys)
        rest = keys[len(lease):]
        if len(rest):
            try:
                arena.allocate(len(rest), keys=rest).register().release()
            except kvshm.Error:
                pass
        lease.release()
"""


@pytest.fixture
def holder(worker: Any, arena_name: str) -> Worker:
    one: Worker = worker(HOLDER, arena_name, "worker-0")
    assert one.hear() == [3, 0]
    return one


def row(name: str) -> str:
    """The arena's line of `kvshm list`."""
    lines = kvshm_cli("list").out.splitlines()
    return next(" ".join(line.split()) for line in lines if line.split()[0] == name)


def stat(name: str) -> Any:
    return kvshm_cli("stat", "--json", name).json


def timely(*argv: str) -> Outcome:
    """As a process of its own, which must not hang."""
    process = spawn_cli(*argv)
    out, err = process.communicate(timeout=30)
    return Outcome(process.returncode, out, err)


def test_dead(holder: Worker, arena_name: str) -> None:
    holder.kill()
    assert row(arena_name).endswith("32 x 4 KiB 0 (+1) 1 dead 1")
    (p,) = stat(arena_name)["processes"]
    assert (p["pid"], p["alive"], p["condition"]) == (holder.pid, False, "gone")
    assert (p["held_blocks"], p["filling_blocks"], p["leases"]) == (3, 2, 1)
    assert f"{holder.pid}  worker-0  DEAD" in kvshm_cli("stat", arena_name).out

    verdict = kvshm_cli("verify", arena_name)
    assert verdict.code == 1
    assert [line.split()[0] for line in verdict.out.splitlines() if "BROKEN" in line] == ["I7"]
    assert f"pid {holder.pid} (worker-0, slot 0) is gone and holds 5 blocks" in verdict.out
    assert verdict.err == (f"kvshm: {arena_name}: 1 invariant broken: "
                           f"`kvshm reap {arena_name}` shows what can be given back\n")


def test_reap(holder: Worker, arena_name: str) -> None:
    holder.kill()
    before = (shm_dir / f"kvshm.{arena_name}").read_bytes()
    preview = kvshm_cli("reap", arena_name)
    assert preview.code == 1
    assert preview.out.splitlines()[1].split() == \
        ["0", str(holder.pid), "worker-0", "3", "2", "0", "no"]
    assert preview.out.endswith(f"nothing was changed; `kvshm reap --yes {arena_name}` gives this "
                                "back\n")
    assert (shm_dir / f"kvshm.{arena_name}").read_bytes() == before

    done = kvshm_cli("reap", "--yes", arena_name)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\ngave back 1 slot, 3 holds, 2 fills, 0 evictions\n")
    assert kvshm_cli("verify", arena_name).code == 0
    found = stat(arena_name)
    assert found["processes"] == [] and found["arena"]["state"] == "idle"
    assert found["stats"]["blocks_inactive"] == 6 and found["stats"]["blocks_free"] == 26
    assert kvshm_cli("reap", arena_name).out == "nothing to give back: no process died here\n"


def test_reap_beside_the_living(holder: Worker, worker: Any, arena_name: str) -> None:
    """Those who live keep what they hold; all dead slots go, not just the one that reap takes."""
    others = []
    for i in (1, 2):  # one after the other, so that their slots are known
        others.append(worker(HOLDER, arena_name, f"worker-{i}"))
        assert others[-1].hear()[1] == i
    holder.kill()
    others[0].kill()
    assert row(arena_name).endswith("1 (+2) 2 dead 1")
    document = kvshm_cli("reap", "--yes", "--json", arena_name).json
    assert [p["label"] for p in document["dead"]] == ["worker-0", "worker-1"]
    assert document["left"] == []
    (p,) = stat(arena_name)["processes"]
    assert (p["label"], p["held_blocks"], p["filling_blocks"]) == ("worker-2", 3, 2)
    assert others[1].ask("go on") == "done"


def test_reap_waits_for_a_device(holder: Worker, arena_name: str) -> None:
    """A ring of the dead process is not torn down yet: its fills stay, and reap says so."""
    import fcntl
    import struct

    slot = 0
    fd = os.open(shm_dir / f"kvshm.{arena_name}", os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK,
                struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, locks.device(slot), 1, 0))
    holder.kill()
    try:
        assert stat(arena_name)["processes"][0]["device_busy"] is True
        first = kvshm_cli("reap", "--yes", arena_name)
        assert first.code == 1
        assert "gave back 0 slots, 3 holds, 0 fills" in first.out
        assert "waits for a device" in first.out
        assert "a device may still write for it" in kvshm_cli("verify", arena_name).out
    finally:
        os.close(fd)
    assert kvshm_cli("reap", "--yes", arena_name).code == 0
    assert stat(arena_name)["processes"] == []


def test_stopped(holder: Worker, arena_name: str) -> None:
    """Nobody answers, nothing is waited for: each verb says what it sees."""
    holder.stop()
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        assert row(arena_name).endswith("1 healthy 1")
        assert timely("list").code == 0
        shown = timely("stat", arena_name)
        assert (shown.code, f"{holder.pid}  worker-0  alive, stopped" in shown.out) == (0, True)
        checked = timely("verify", arena_name)
        assert checked.code == 0
        assert f"process {holder.pid} (worker-0) is stopped" in checked.out
        assert timely("reap", "--yes", arena_name).out == \
            "nothing to give back: no process died here\n"
        assert timely("rm", arena_name).code == 6
    finally:
        holder.resume()
    assert holder.ask("go on") == "done"


def test_looking_takes_no_slot_and_no_lock(holder: Worker, arena_name: str) -> None:
    """While the command looks, no lock byte is held beyond the worker's."""
    path = shm_dir / f"kvshm.{arena_name}"

    def locked() -> set[int]:
        inode = f":{path.stat().st_ino} "
        return {int(line.split()[6]) for line in open("/proc/locks") if inode in line}

    def slots() -> int:
        used = stat(arena_name)["stats"]["slots_used"]
        assert isinstance(used, int)
        return used

    before, used = locked(), slots()
    assert before == {locks.life(0)}
    process = spawn_cli("stat", "--interval", "0.05", arena_name)
    try:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
            assert locked() == before
        assert slots() == used
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_working(worker: Any, arena_name: str) -> None:
    """Two processes that evict each other's blocks: never broken, however often one looks."""
    busy = [worker(BUSY, arena_name, seed) for seed in (1, 2)]
    for one in busy:
        assert one.hear() == "ready"
    before = stat(arena_name)["stats"]["evicted_total"]
    end, looks = time.monotonic() + 4, 0
    while time.monotonic() < end:
        result = kvshm_cli("verify", arena_name)
        assert result.code == 0, result.out
        assert "2 live processes" in result.out
        looks += 1
    assert looks > 3
    assert stat(arena_name)["stats"]["evicted_total"] > before

    # One dies in the midst of it; the other's helper gives back what it held.
    busy[0].kill()
    end = time.monotonic() + 10
    while (result := kvshm_cli("verify", arena_name)).code and time.monotonic() < end:
        time.sleep(0.1)
    assert result.code == 0, result.out

    # All stopped, wherever they were: nothing that the living have in hand is called broken.
    busy[1].stop()
    os.waitid(os.P_PID, busy[1].pid, os.WSTOPPED | os.WNOWAIT)
    for verb in ("list", "stat"):
        assert timely(verb, *([arena_name] if verb == "stat" else [])).code == 0
    busy[1].resume()


def test_survivor_of_all(worker: Any, arena_name: str) -> None:
    """Everybody is killed in the midst of work; the arena is read, reaped and used again."""
    busy = [worker(BUSY, arena_name, seed) for seed in (3, 4)]
    for one in busy:
        assert one.hear() == "ready"
    time.sleep(0.5)
    for one in busy:
        one.kill()
    assert kvshm_cli("stat", arena_name).code == 0
    assert row(arena_name).split()[-3:] == ["2", "dead", "1"]
    assert kvshm_cli("reap", "--yes", arena_name).code == 0
    result = kvshm_cli("verify", "--core", "--quiet-arena", arena_name)
    assert (result.code, "core: 0 findings" in result.out) == (0, True), result.out
    with kvshm.Arena.attach(arena_name, helper=False) as arena:
        arena.allocate(2, keys=np.arange(1, 33, dtype=np.uint8).reshape(2, 16)).register().release()
    assert kvshm_cli("rm", arena_name).code == 0
