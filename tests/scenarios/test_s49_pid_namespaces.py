# SPDX-License-Identifier: Apache-2.0
"""S49: who lives is not a matter of process numbers."""
import signal
import time
from pathlib import Path

import pytest
from support.hosts import pid_namespace

HOLD = "lease = a.match(raw_keys(0, 10)); fill = a.allocate(4)"


def child_of(one):
    """The host's number for the process that the unshare command started."""
    return int(Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()[0])


@pytest.fixture
def arena(player, arena_name):
    one = player()
    one.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=1024, helper=False); "
           "store(a, raw_keys(0, 10)).release()")
    return one


@pytest.mark.crash
def test_two_processes_number_one(fresh_player, arena, arena_name):
    attach = f"a = kvshm.Arena.attach({arena_name!r}, helper=False)"
    first, second = (fresh_player(under=pid_namespace()) for _ in range(2))
    for one in (first, second):
        assert one.get("os.getpid()") == 1
        one.do(attach)
    first.do(HOLD)
    assert second.get("[tuple(a.reap()) for _ in range(100)] == [(0,) * 6] * 100")
    assert first.get("verify(lease, raw_keys(0, 10))") == []
    found = {p["pid"]: p for p in second.get("[p._asdict() for p in a.processes()]") if p["alive"]}
    assert 1 in found and len(found) == 2, "both say 1, the third is of this namespace"
    namespaces = {p["pid_ns"] for p in second.get("[p._asdict() for p in a.processes()]")}
    assert len(namespaces) == 3
    # Killed, and another process with the same number is started in its place.
    gone = child_of(first)
    first.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{gone}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    replacement = fresh_player(under=pid_namespace())
    assert replacement.get("os.getpid()") == 1
    report = second.get("a.reap()._asdict()")
    assert (report["slots_cleared"], report["holds"], report["fills"]) == (1, 10, 4)
    assert arena.get("a.is_valid()") == []
    assert arena.get("a.stats().slots_used") == 2


@pytest.mark.crash
def test_number_used_again(fresh_player, arena, arena_name):
    """In one namespace: a new process has the dead one's number."""
    init = fresh_player(under=pid_namespace())
    init.do(f"""
        def victim():
            import select
            r, w = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    a = kvshm.Arena.attach({arena_name!r}, helper=False)
                    {HOLD}
                    os.write(w, b"x")
                    time.sleep(100)
                finally:
                    os._exit(1)
            assert select.select([r], [], [], 20)[0] and os.read(r, 1) == b"x"
            return pid
        def same_number(pid):
            with open("/proc/sys/kernel/ns_last_pid", "w") as f:
                f.write(str(pid - 1))
            new = os.fork()
            if new == 0:
                time.sleep(100)
                os._exit(0)
            return new
        pid = victim()
    """)
    assert arena.get("tuple(a.reap())") == [0] * 6, "alive: never robbed"
    init.do(f"os.kill(pid, {int(signal.SIGKILL)}); os.waitpid(pid, 0)")
    try:
        init.do("new = same_number(pid)")
    except AssertionError as error:
        pytest.skip(f"ns_last_pid: {error}")
    assert init.get("new == pid"), "a living process has the number of the dead one"
    report = arena.get("a.reap()._asdict()")
    assert (report["slots_cleared"], report["holds"], report["fills"]) == (1, 10, 4)
    assert init.get("os.waitpid(new, os.WNOHANG)") == [0, 0]
    assert arena.get("a.is_valid()") == []
