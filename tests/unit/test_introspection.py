# SPDX-License-Identifier: Apache-2.0
"""Statistics, blocks, processes, log and the objects on the mount."""
import logging
import mmap
import os
import re
import time
from pathlib import Path

import kvshm
import pytest
from kvshm import shm
from kvshm.introspect import STAT_TEXTS
from support import shm_dir
from support.arenas import BLOCK, keys, store

HEADER = Path(__file__).resolve().parents[2] / "include" / "kvshm.h"


def test_statistics_have_the_names_of_the_header(arena):
    listed = re.findall(r"^  X\((\w+), \"(.*?)\"\)", HEADER.read_text(), re.M)
    assert len(listed) > 30 and STAT_TEXTS == dict(listed)
    stats = arena.stats()
    assert list(stats) == [name for name, _ in listed]
    assert stats["blocks_total"] == stats.blocks_total == 16 and len(stats) == len(listed)
    with pytest.raises(AttributeError):
        stats.no_such_thing
    with pytest.raises(KeyError):
        stats["no_such_thing"]
    assert "blocks_free=16" in repr(stats)


def test_own_statistics_are_of_this_process_alone(arena, worker):
    store(arena, keys(2)).release()
    worker("""
        import sys, kvshm
        kvshm.Arena.attach(sys.argv[1]).allocate(3).abort()
        say("done")
    """, arena.name).hear()
    assert arena.stats().allocated_total == 5
    assert arena.stats(own=True).allocated_total == 2
    assert arena.stats(own=True).blocks_total == 0


def test_info(arena):
    info = arena.info()
    assert info.name == arena.name and info.path == str(shm_dir / f"kvshm.{arena.name}")
    assert info.bytes == os.path.getsize(info.path) >= info.data_offset + 16 * BLOCK
    assert info.raw and info.identity == "" and info.created and not info.pinned
    assert len(info.uuid) == len(info.fingerprint) == 16 and any(info.uuid)
    assert info.private_bytes <= 16 * 16


def test_a_block(arena):
    fill = arena.allocate(1, keys=keys(1), parts=3, priority=70)
    fill.begin(0, 1)
    block = arena.block(int(fill.ids[0]))
    assert block.key == bytes(keys(1)[0]) and block.state == kvshm.State.FILLING
    assert (block.parts, block.begun, block.arrived) == (3, 0b010, 0)
    assert (block.priority, block.own_holds, block.holders) == (70, 1, 1 << arena.slot)
    with pytest.raises(kvshm.InvalidArgument):
        arena.block(16)


def test_processes(arena, worker):
    one = worker("import sys, kvshm; a = kvshm.Arena.attach(sys.argv[1], label='two'); say(1);"
                 " hear()", arena.name)
    one.hear()
    mine, other = arena.processes()
    assert (mine.pid, mine.self, mine.alive) == (os.getpid(), True, True)
    assert (other.pid, other.self, other.label) == (one.pid, False, "two")
    started = int(Path(f"/proc/{one.pid}/stat").read_text().rsplit(")")[1].split()[19])
    assert other.start_time == started and abs(other.attached_at - time.time()) < 60
    assert mine.uid == os.getuid()


def test_a_dead_process_is_seen_and_reaped(make_arena, worker):
    arena = make_arena(helper=False)
    one = worker("""
        import sys, kvshm
        arena = kvshm.Arena.attach(sys.argv[1], helper=False)
        lease = arena.allocate(2, keys=[bytes([i]) * 16 for i in (1, 2)]).register()
        fill = arena.allocate(3)
        say(arena.slot)
        hear()
    """, arena.name)
    slot = one.hear()
    one.kill()
    dead = arena.processes()[1]
    assert (dead.slot, dead.alive) == (slot, False)
    report = arena.reap()
    assert (report.slots_dead, report.slots_cleared, report.holds, report.fills) == (1, 1, 2, 3)
    assert len(arena.processes()) == 1
    assert arena.reap() == (0, 0, 0, 0, 0, 0)


def test_tick_does_what_the_helper_does(make_arena, worker):
    arena = make_arena(helper=False)
    one = worker("import sys, kvshm; a = kvshm.Arena.attach(sys.argv[1]); f = a.allocate(3);"
                 " say(1); hear()", arena.name)
    one.hear()
    one.kill()
    assert arena.stats().blocks_filling == 3
    arena.tick()
    assert arena.stats().blocks_filling == 0


def test_broken_invariants_are_named(arena):
    """A bit that nobody holds, written into a block's word behind the library's back."""
    lease = store(arena, keys(1))
    assert arena.is_valid() == []
    handle = lease.handle(0)
    with open(arena.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(bytes(keys(1)[0])) - 8  # the word stands before the key
        good = memory[at:at + 8]
        word = int.from_bytes(good, "little")
        assert word & 2**48 - 1 == 1 << arena.slot
        broken = word & ~(7 << 48) | int(kvshm.State.EVICTING) << 48
        memory[at:at + 8] = broken.to_bytes(8, "little")
        found = arena.is_valid()
        memory[at:at + 8] = good
    assert found and all(one.what and one.invariant > 0 for one in found)
    assert handle.id in {one.id for one in found}
    assert arena.is_valid() == []


def test_the_log_has_a_function_or_nobody(new_name, worker):
    one = worker("""
        import logging, sys, kvshm
        path = "/dev/shm/kvshm." + sys.argv[1]
        seen = []
        kvshm.set_log(lambda level, text: seen.append([level, text]))
        open(path, "w").close()     # remains of a creator that died
        kvshm.Arena.open(sys.argv[1], blocks=1, block_bytes=64).close()
        say(seen)
        kvshm.set_log(None)
        kvshm.remove(sys.argv[1])
        open(path, "w").close()
        kvshm.Arena.open(sys.argv[1], blocks=1, block_bytes=64).close()
        say(len(seen))
        def broken(level, text):
            raise ValueError("in the log function")
        kvshm.set_log(broken)
        kvshm.remove(sys.argv[1])
        open(path, "w").close()
        kvshm.Arena.open(sys.argv[1], blocks=1, block_bytes=64).close()
        say("survived")
    """, new_name())
    seen = one.hear()
    assert [level for level, text in seen if "remains" in text] == [logging.WARNING]
    assert one.hear() == len(seen)
    assert one.hear() == "survived"
    assert one.wait() == 0


def test_names_and_a_read_only_map(arena):
    store(arena, keys(1)).release()
    assert arena.name in shm.names()
    with shm.open_readonly(arena.name) as memory:
        assert len(memory) == arena.info().bytes
        assert memory.find(bytes(keys(1)[0])) > 0
        assert memory[arena.info().data_offset:][:16] == bytes(keys(1)[0])
        with pytest.raises(TypeError):
            memory[0] = 1
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        shm.open_readonly(arena.name).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_read_only_map_of_what_is_not_there(new_name):
    name = new_name()
    with pytest.raises(kvshm.ArenaNotFound):
        shm.open_readonly(name)
    for wrong in ("", "a/b", "../x"):
        with pytest.raises(kvshm.InvalidArgument):
            shm.open_readonly(wrong)
    (shm_dir / f"kvshm.{name}").touch()
    assert name in shm.names()
    with pytest.raises(kvshm.LayoutMismatch, match="empty"):
        shm.open_readonly(name)


def test_import_needs_little():
    """Plain `import kvshm` pulls in numpy and posix_ipc at most."""
    import subprocess
    import sys
    said = subprocess.run(
        [sys.executable, "-c", "import sys; before = set(sys.modules); import kvshm, kvshm.shm, "
         "kvshm.eviction; kvshm.eviction.Evictor; "
         "print(*{m.split('.')[0] for m in set(sys.modules) - before})"],
        capture_output=True, text=True, timeout=60, check=True).stdout.split()
    foreign = {name for name in said if name not in sys.stdlib_module_names
               and not name.startswith("_")}
    assert {"kvshm", "numpy"} <= foreign <= {"kvshm", "numpy", "posix_ipc", "cython_runtime"}
