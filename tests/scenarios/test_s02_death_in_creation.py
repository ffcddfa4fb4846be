# SPDX-License-Identifier: Apache-2.0
"""S02: the creator is killed between any two steps; nobody maps a half-built arena."""
import shutil
import subprocess
import time
from pathlib import Path

import kvshm
import pytest
from support import shm_dir

SOURCE = Path(__file__).parent / "native" / "killer.c"
CREATOR = """
import ctypes, sys
import kvshm
armed = ctypes.c_int.in_dll(ctypes.CDLL(None), "kvshm_killer_armed")
armed.value = 1
a = kvshm.Arena.create(sys.argv[1], blocks=300, block_bytes=4096, helper=False)
armed.value = 0
say("made")
hear()
"""


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("native") / "killer.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(SOURCE),
                    "-ldl"], check=True, timeout=60)
    return str(library)


@pytest.fixture(scope="module")
def points(killer, tmp_path_factory):
    """Every call of a wrapped function that one creation makes, in order."""
    from support import PREFIX, Worker
    seen = tmp_path_factory.mktemp("points") / "calls"
    name = f"{PREFIX}points"
    one = Worker(CREATOR, name, env={"LD_PRELOAD": killer, "KVSHM_COUNT": str(seen)})
    try:
        assert one.hear() == "made"
    finally:
        one.close()
        kvshm.remove(name, force=True)
    calls = seen.read_text().split()
    assert any(c.startswith("ftruncate") for c in calls) and len(calls) > 20
    return calls


def chosen(points, few):
    """All points, or a spread that keeps the first of each function."""
    if not few:
        return points
    firsts = {}
    for point in points:
        firsts.setdefault(point.split(":")[0] + point.split(":")[2], point)
    return [p for p in points if p in set(firsts.values()) or p in points[-4:]]


@pytest.mark.crash
@pytest.mark.slow
def test_killed_at_each_step(launch, killer, points, arena_name, rounds):
    path = shm_dir / f"kvshm.{arena_name}"
    half = finished = 0
    for point in chosen(points, few=rounds(1, 0)):
        creator = launch(CREATOR, arena_name, env={"LD_PRELOAD": killer, "KVSHM_KILL": point})
        assert creator.wait() == -9, f"{point}: {creator.stderr()}"
        started = time.monotonic()
        try:
            client = kvshm.Arena.attach(arena_name, timeout=0.3, helper=False)
        except kvshm.ArenaNotReady as error:
            half += 1
            assert "creator" in str(error), (point, error)
        except kvshm.ArenaNotFound:
            assert not path.exists(), point
        else:
            finished += 1
            assert client.is_valid() == [], point
            client.close()
        assert time.monotonic() - started < 1.5, f"{point}: waited beyond its limit"
        with kvshm.Arena.open(arena_name, blocks=300, block_bytes=4096, helper=False) as owner:
            assert owner.is_valid() == [], point
            assert owner.stats().blocks_free == owner.blocks == 300, point
            with owner.allocate(300, keys=None) as fill:  # every page can be written
                for i in range(300):
                    fill.copy_in(i, b"x" * 4096)
        kvshm.remove(arena_name)
        assert not path.exists()
    assert half >= 5 and finished >= 1, "kills before and after the arena was ready"


@pytest.mark.crash
def test_a_client_waits_for_a_slow_creator(launch, start, arena_name):
    """Stopped half-way, the creator is neither dead nor done: the client waits its time-out."""
    creator = launch("""
        import sys, kvshm
        say("go")
        a = kvshm.Arena.create(sys.argv[1], size="1GiB", block_bytes=4096, helper=False)
        say(a.blocks)
        hear()
    """, arena_name)
    creator.hear()
    path = shm_dir / f"kvshm.{arena_name}"
    deadline = time.monotonic() + 10
    while not path.exists() or path.stat().st_blocks < 1000:
        assert time.monotonic() < deadline
    creator.stop()
    if path.stat().st_blocks * 512 > (1 << 30) - (8 << 20):
        pytest.skip("the creator was faster than its observer")
    started = time.monotonic()
    with pytest.raises(kvshm.ArenaNotReady):
        kvshm.Arena.attach(arena_name, timeout=0.5, helper=False)
    assert 0.4 < time.monotonic() - started < 1.5
    creator.resume()
    blocks = creator.hear()
    with kvshm.Arena.attach(arena_name, timeout=5, helper=False) as client:
        assert client.blocks == blocks


def test_its_file_deleted_by_hand(player, arena_name):
    owner = player()
    code = f"a = kvshm.Arena.open({arena_name!r}, blocks=16, block_bytes=4096)"
    owner.do(code + "; lease = store(a, raw_keys(0, 4))")
    (shm_dir / f"kvshm.{arena_name}").unlink()
    with pytest.raises(kvshm.ArenaNotFound, match=arena_name):
        kvshm.Arena.attach(arena_name, timeout=0.3)
    newcomer = player()
    newcomer.do(code)
    assert newcomer.get("a.info().created")
    assert owner.get("verify(lease, raw_keys(0, 4))") == [], "what is held stays readable"
    newcomer.do("store(a, raw_keys(50, 4)).release()")
    assert newcomer.get("len(a.match(raw_keys(0, 4)))") == 0
