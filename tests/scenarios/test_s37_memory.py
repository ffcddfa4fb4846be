# SPDX-License-Identifier: Apache-2.0
"""S37, S38, S43, S44: the size that was asked for is reserved at once, is used, and is total."""
import errno
import os
import re
import time
from pathlib import Path

import kvshm
import pytest
from support import shm_dir
from support.hosts import on_mount

MIB = 1 << 20


def fill_up(folder):
    """Until the mount has no page left."""
    written = 0
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                written += file.write(bytes(64 << 10))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return written


USE_ALL = """
with a.allocate(a.blocks) as fill:
    for i in range(a.blocks):
        with fill.view(i) as v:
            v[:] = np.full(a.block_bytes, 7, np.uint8)
"""


def test_pages_are_reserved_at_creation(fresh_player, tmp_path):
    """S37: another process fills the mount afterwards; every block can still be written."""
    one = fresh_player(under=on_mount(tmp_path, "size=256m"))
    one.do(f"a = kvshm.Arena.create('s37', size='128MiB', block_bytes='1MiB', "
           f"dir={str(tmp_path)!r})")
    seen = one.worker.process.pid
    assert fill_up(Path(f"/proc/{seen}/root{tmp_path}")) > 100 * MIB
    one.do(USE_ALL)
    assert one.get("a.is_valid()") == []


def test_too_little_left_at_creation(fresh_player, tmp_path):
    """S37, second run: 100 MiB free, 128 wanted."""
    one = fresh_player(under=on_mount(tmp_path, "size=256m"))
    one.do(f"open({str(tmp_path / 'other')!r}, 'wb').write(bytes(156 << 20))")
    error = one.fails(f"kvshm.Arena.create('s37', size='128MiB', block_bytes='1MiB', "
                      f"dir={str(tmp_path)!r})")
    assert error.kind == "NoSpace"
    assert one.get(f"os.listdir({str(tmp_path)!r})") == ["other"], "nothing is left behind"


def test_filled_while_it_is_created(fresh_player, tmp_path, rounds):
    """Between the look at the free space and the last page: an error, never SIGBUS."""
    for number in range(rounds(3, 20)):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = fresh_player(under=on_mount(folder, "size=300m"))
        one.send(f"a = kvshm.Arena.create('s37', size='256MiB', block_bytes='1MiB', "
                 f"dir={str(folder)!r})")
        fill_up(Path(f"/proc/{one.pid}/root{folder}"))
        try:
            one.answer()
        except AssertionError as error:
            assert error.kind == "NoSpace", error
            assert one.get(f"os.listdir({str(folder)!r})") == ["filler"]
        else:
            one.do(USE_ALL)


@pytest.mark.parametrize("size", [300 * MIB + 1, "513MiB", "1.04GiB"], ids=str)
def test_configured_is_used(player, arena_name, size):
    """S38: measured from outside; data and metadata are shown apart."""
    wanted = kvshm.parse_size(size)
    one = player()
    one.do(f"before = os.statvfs('/dev/shm').f_bfree; "
           f"a = kvshm.Arena.create({arena_name!r}, size={size!r}, block_bytes='1MiB', pin='auto')")
    info = one.get("a.info()._asdict() | {'uuid': '', 'fingerprint': ''}")
    stat = os.stat(shm_dir / f"kvshm.{arena_name}")
    measured = stat.st_blocks * 512
    page = 4096
    assert measured <= wanted + max(wanted // 50, 16 * MIB)
    assert abs(info["bytes"] - measured) <= page
    assert info["bytes"] == stat.st_size
    assert wanted <= info["bytes"] < wanted + page
    data = info["blocks"] * info["block_bytes"]
    assert data + info["metadata_bytes"] <= info["bytes"]
    assert data > wanted * 0.98 - MIB - 2 * MIB, "what is left goes to data, by whole blocks"
    assert info["metadata_bytes"] == info["data_offset"]
    locked = int(re.search(r"VmLck:\s+(\d+) kB",
                           open(f"/proc/{one.pid}/status").read())[1]) * 1024
    assert locked == (info["bytes"] if info["pinned"] else 0)


def test_size_is_the_total(player, arena_name):
    """S43: however many ranks attach."""
    crew = []
    for ranks in (1, 2, 4):
        while len(crew) < ranks:
            one = player()
            one.do(f"a = kvshm.Arena.open({arena_name!r}, size='256MiB', block_bytes='1MiB')")
            crew.append(one)
        used = os.stat(shm_dir / f"kvshm.{arena_name}").st_blocks * 512
        assert used == 256 * MIB
        assert [one.get("a.blocks") for one in crew] == [crew[0].get("a.blocks")] * ranks
        assert crew[-1].get("a.info().slots_used") == ranks
    # One arena: all blocks are there for any rank.
    crew[0].do("f = a.allocate(a.blocks)")
    assert crew[3].fails("a.allocate(1)").kind == "NoSpace"


@pytest.mark.parametrize("size, blocks", [
    ("2GiB", None), ("2G", None), ("16 MiB", 0), ("20000000", 0), (16 << 20, 0), ("16M", 0),
    ("1.5e7", "refused"), ("2g", "refused"), ("16 MB", "refused"), ("-16MiB", "refused"),
    (-1, "refused"), (0, "refused"), ("0", "refused"), ("", "refused"), ("lots", "refused"),
    ("16MiBs", "refused"), ("1e3GiB", "refused"), (float("nan"), "refused"),
    (float("inf"), "refused"), ("9" * 30, "refused"), ("9" * 400 + "GiB", "refused"),
    (2 ** 64 + 5, "refused"), (1 << 63, "refused"), (1000, "refused"), ([16], "refused"),
], ids=lambda v: str(v)[:20])
def test_units(arena_name, size, blocks):
    """S43: wrong units and impossible sizes are refused, with an example or both figures."""
    if blocks is None:
        assert kvshm.parse_size(size) == 2 << 30
        return
    if blocks != "refused":
        with kvshm.Arena.create(arena_name, size=size, block_bytes=4096, helper=False) as arena:
            assert 15e6 < arena.info().bytes < 21e6
        return
    with pytest.raises(kvshm.Error) as refused:
        kvshm.Arena.create(arena_name, size=size, block_bytes=4096)
    text = str(refused.value)
    assert isinstance(refused.value, (kvshm.InvalidArgument, kvshm.NoSpace)), text
    assert "size" in text or "bytes wanted" in text, text
    assert not (shm_dir / f"kvshm.{arena_name}").exists()


def memory(field):
    return int(re.search(rf"{field}:\s+(\d+)", open("/proc/meminfo").read())[1]) * 1024


@pytest.mark.parametrize("of", ["more than the RAM", "more than is available"])
def test_more_than_the_memory(player, arena_name, of):
    """S43. Refused before a page is touched: the kernel's own answer would be SIGKILL."""
    wanted = memory("MemTotal") + MIB
    if of == "more than is available":
        wanted = memory("MemAvailable") + memory("SwapFree") + (256 << 20)
        if wanted >= os.statvfs(shm_dir).f_bavail * 4096:
            pytest.skip("the shm mount is smaller than the memory that is available")
    one = player()
    started = time.monotonic()
    error = one.fails(f"kvshm.Arena.create({arena_name!r}, size={wanted}, block_bytes='2MiB')")
    assert time.monotonic() - started < 5
    assert error.kind == "NoSpace" and str(wanted)[:6] in error.text, error
    assert not (shm_dir / f"kvshm.{arena_name}").exists()


@pytest.mark.parametrize("size", ["128MiB", 64 * MIB + 4096, "60MiB"], ids=str)
def test_mount_too_small(fresh_player, size):
    """S44: 64 MiB over /dev/shm, as in a container with its default."""
    one = fresh_player(under=on_mount("/dev/shm", "size=64m"))
    create = f"a = kvshm.Arena.open('s44', size={size!r}, block_bytes=65536)"
    started = time.monotonic()
    if size == "60MiB":
        one.do(create + USE_ALL)
        return
    error = one.fails(create)
    assert time.monotonic() - started < 5
    assert error.kind == "NoSpace"
    assert str(kvshm.parse_size(size)) in error.text and str(64 * MIB) in error.text
    for remedy in ("smaller size", "remount", "--shm-size"):
        assert remedy in error.text
    assert one.get("os.listdir('/dev/shm')") == []
    assert one.end() == 0
