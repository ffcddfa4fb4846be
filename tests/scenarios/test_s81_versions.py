# SPDX-License-Identifier: Apache-2.0
"""S81: another layout, another build, a damaged start: refused before anything is touched."""
import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import kvshm
import pytest
from support import shm_dir
from support.oracle import raw_keys, store, verify

# superblock: magic u64, layout version u32, its own size u32, layout hash u64 (docs/format.md)
MAGIC, VERSION, SIZE, HASH = 0, 8, 12, 16


@pytest.fixture
def path(arena_name):
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=4096, helper=False) as arena:
        store(arena, raw_keys(0, 8)).release()
    return shm_dir / f"kvshm.{arena_name}"


def poke(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def peek(path, at, form):
    with open(path, "rb") as file:
        file.seek(at)
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refused(path, arena_name, error):
    """Attach and open refuse alike, change nothing and say what there is to do."""
    before, texts = digest(path), []
    for call in (kvshm.Arena.attach, kvshm.Arena.open):
        with pytest.raises(error) as raised:
            call(arena_name, timeout=0.3, block_bytes=4096, blocks=16)
        texts.append(str(raised.value))
    with pytest.raises(kvshm.ArenaExists):
        kvshm.Arena.create(arena_name, blocks=16, block_bytes=4096)
    assert digest(path) == before, "nothing was touched"
    assert texts[0].split(": ", 1)[1] == texts[1].split(": ", 1)[1]
    return texts[0]


def test_same_layout(path, arena_name):
    with kvshm.Arena.attach(arena_name, helper=False) as arena:
        with arena.match(raw_keys(0, 8)) as hit:
            assert verify(hit, raw_keys(0, 8)) == []


@pytest.mark.parametrize("version", [0, 2, 77, 2 ** 32 - 1])
def test_other_layout_version(path, arena_name, version):
    mine = peek(path, VERSION, "<I")
    assert mine != version
    poke(path, VERSION, struct.pack("<I", version))
    text = refused(path, arena_name, kvshm.LayoutMismatch)
    assert f"layout {version}" in text and f"has {mine}" in text
    assert "same kvshm in all processes" in text or "remove the arena" in text
    # It can be identified, and removed.
    kvshm.remove(arena_name)
    assert not path.exists()


def test_other_build_of_this_version(path, arena_name):
    mine = peek(path, HASH, "<Q")
    poke(path, HASH, struct.pack("<Q", mine ^ 1))
    text = refused(path, arena_name, kvshm.LayoutMismatch)
    assert f"{mine:016x}" in text and f"{mine ^ 1:016x}" in text


@pytest.mark.parametrize("at, data", [(MAGIC, b"\xff"), (MAGIC, b"NOTKVSHM"),
                                      (SIZE, struct.pack("<I", 8192))],
                         ids=["a bit of the magic", "another magic", "superblock size"])
def test_damaged_start(path, arena_name, at, data):
    poke(path, at, data)
    text = refused(path, arena_name, kvshm.LayoutMismatch)
    assert "no kvshm arena" in text and "rm --force" in text


def test_damaged_geometry(path, arena_name):
    """Each number of the geometry by itself."""
    whole = path.read_bytes()
    for field in range(17):
        for change in (1, 64, 1 << 33, 1 << 63):
            at = 320 + 8 * field
            value = struct.unpack_from("<Q", whole, at)[0]
            poke(path, at, struct.pack("<Q", value ^ change))
            text = refused(path, arena_name, kvshm.ArenaDamaged)
            assert "damaged" in text
            poke(path, at, struct.pack("<Q", value))
    with kvshm.Arena.attach(arena_name, helper=False) as arena:
        assert len(arena.match(raw_keys(0, 8))) == 8, "put back, it is sound"


def test_other_block_size(path, arena_name):
    with pytest.raises(kvshm.LayoutMismatch, match="4096.*8192|8192.*4096"):
        kvshm.Arena.attach(arena_name, block_bytes=8192)


def test_one_client_at_a_time_is_replaced(path, player, arena_name):
    """The patch version does not matter: clients come and go under load, the cache stays."""
    clients = [player() for _ in range(3)]
    attach = f"a = kvshm.Arena.open({arena_name!r}, blocks=16, block_bytes=4096)"
    for one in clients:
        one.do(attach)
    for number in range(6):
        clients[number % 3].do("a.close()")
        assert clients[number % 3].end() == 0
        clients[number % 3] = player()
        clients[number % 3].do(attach)
        for one in clients:
            assert one.get("verify(a.match(raw_keys(0, 8)), raw_keys(0, 8))") == []
            assert one.get("len(a.match(raw_keys(0, 8)))") == 8


def test_the_tool_identifies_what_the_library_refuses(path, arena_name):
    """The command reads the object without the library, so it can say what lies there."""
    main = Path(kvshm.__file__).parent / "tools" / "cli" / "main.py"
    if not main.exists():
        pytest.skip("the kvshm command is not in this installation")
    poke(path, VERSION, struct.pack("<I", 9))
    done = subprocess.run([sys.executable, "-m", "kvshm.tools.cli", "list"], capture_output=True,
                          text=True, timeout=60)
    output = done.stdout + done.stderr
    if "No module" in output or "ModuleNotFound" in output:
        pytest.skip(output.strip().splitlines()[-1])
    assert arena_name in output and "9" in output, output
    assert "Traceback" not in output
