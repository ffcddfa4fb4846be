# SPDX-License-Identifier: Apache-2.0
"""S45, S46, S47: control groups, huge pages and memlock limits: refused or degraded, and said."""
import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cli import kvshm_cli
from support.hosts import on_mount
from support.users import ALICE, become, need_root

MIB = 1 << 20


def group_root():
    """(folder, limit, usage) of the memory controller that may be written, version 2 or 1."""
    for root, limit, usage in (("/sys/fs/cgroup", "memory.max", "memory.current"),
                               ("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                "memory.usage_in_bytes")):
        probe = Path(root, f"kvshm-probe-{os.getpid()}")
        try:
            probe.mkdir()
        except OSError:
            continue
        usable = (probe / limit).exists()
        with contextlib.suppress(OSError):
            probe.rmdir()
        if usable:
            return Path(root), limit, usage
    pytest.skip("no memory controller of control groups that may be written to")


@dataclass
class Group:
    folder: Path
    usage: str

    @property
    def used(self):
        return int((self.folder / self.usage).read_text())


@pytest.fixture
def group():
    """group(player, bytes) puts a process into a group of its own; the groups go with the test."""
    root, limit, usage = group_root()
    made = []

    def limited(one, size):
        folder = root / f"kvshm-test-{os.getpid()}-{len(made)}"
        folder.mkdir()
        made.append(folder)
        (folder / limit).write_text(str(size))
        (folder / "cgroup.procs").write_text(str(one.pid))
        return Group(folder, usage)

    yield limited
    for folder in made:
        for pid in (folder / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        folder.rmdir()


def test_owner_in_a_small_group(player, arena_name, group):
    """S45: refused before a page is touched, with the group's name; no silent kill."""
    owner = player()
    small = group(owner, 64 * MIB)
    started = time.monotonic()
    error = owner.fails(f"kvshm.Arena.create({arena_name!r}, size='128MiB', block_bytes='1MiB')")
    assert time.monotonic() - started < 2
    assert error.kind == "NoSpace"
    assert small.folder.name in error.text and "control group" in error.text
    assert str(128 * MIB) in error.text and str(64 * MIB) in error.text
    assert not Path("/dev/shm", f"kvshm.{arena_name}").exists()
    assert small.used < 32 * MIB, "nothing was touched"
    # What fits is made, and charged to this group.
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, size='24MiB', block_bytes='1MiB')")
    assert small.used > 24 * MIB
    # Status says so: the group that pays is the one that was filled.
    said = owner.get("a.info().charged_group")
    assert said.endswith(f"/{small.folder.name}")
    assert kvshm_cli("stat", "--json", arena_name).json["arena"]["charged_group"] == said
    assert re.search(rf"(?m)^charged_group +{re.escape(said)}$", kvshm_cli("stat", arena_name).out)


def test_client_in_a_small_group(player, arena_name, group):
    """S45: pages are charged to who made them; a client reads and writes all of them."""
    owner, client = player(), player()
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, size='128MiB', block_bytes='1MiB')")
    small = group(client, 64 * MIB)
    client.do(f"a = kvshm.Arena.attach({arena_name!r}); "
              "lease = store(a, raw_keys(0, a.blocks)); bad = verify(lease, raw_keys(0, a.blocks))")
    assert client.get("bad") == []
    assert small.used < 60 * MIB
    # Not this group, whoever asks; and it stays so when the owner is gone.
    said = client.get("a.info().charged_group")
    assert said == owner.get("a.info().charged_group") != ""
    assert small.folder.name not in said
    owner.worker.kill()
    assert kvshm_cli("stat", "--json", arena_name).json["arena"]["charged_group"] == said


def test_the_charged_group_is_that_of_the_creator(player, arena_name):
    """S45, where no group may be made: what the kernel says of the creator is what is shown."""
    owner, client = player(), player()
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=4, block_bytes=1024)")
    client.do(f"a = kvshm.Arena.attach({arena_name!r})")
    lines = [line.split(":", 2) for line in Path(f"/proc/{owner.pid}/cgroup").read_text().split()]
    groups = [path for _, controllers, path in lines if "memory" in controllers.split(",")] or [
        path for _, controllers, path in lines if not controllers]
    assert client.get("a.info().charged_group") == (groups[0] if groups else "")


def test_limited_owner_unlimited_client(player, arena_name, group):
    owner, client = player(), player()
    group(owner, 64 * MIB)
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, size='24MiB', block_bytes='1MiB')")
    client.do(f"a = kvshm.Arena.attach({arena_name!r}); lease = store(a, raw_keys(0, a.blocks))")
    owner.do("m = a.match(raw_keys(0, a.blocks))")
    assert owner.get("verify(m, raw_keys(0, a.blocks))") == []


@contextlib.contextmanager
def pool(pages):
    """So many more huge pages on this host, for a while."""
    need_root()
    file = Path("/proc/sys/vm/nr_hugepages")
    if not file.exists():
        pytest.skip("this kernel has no huge pages")
    before = int(file.read_text())
    file.write_text(str(before + pages))
    try:
        if int(file.read_text()) < before + pages:
            pytest.skip("no memory in one piece for huge pages")
        yield
    finally:
        file.write_text(str(max(0, int(file.read_text()) - pages)))


def test_few_huge_pages(fresh_player, tmp_path, arena_name):
    """S46: four pages, an arena of 64 MiB: refused in every mode, never SIGBUS."""
    with pool(4):
        one = fresh_player(under=on_mount(tmp_path, "pagesize=2M,size=8M", "hugetlbfs"))
        for mode in ("auto", "require", "off"):
            error = one.fails(f"kvshm.Arena.create('s46', size='64MiB', block_bytes='1MiB', "
                              f"dir={str(tmp_path)!r}, huge={mode!r})")
            assert error.kind == "NoSpace", error
            assert str(64 * MIB) in error.text
            assert one.get(f"os.listdir({str(tmp_path)!r})") == []
        # Normal pages, with one warning; the true page size is shown.
        one.do(f"log.clear(); a = kvshm.Arena.create({arena_name!r}, size='64MiB', "
               "block_bytes='1MiB', dir='/dev/shm', huge='auto')")
        page = one.get("a.info().page_bytes")
        warnings = [t for _, t in one.get("log") if "pages" in t]
        assert (page, len(warnings)) in ((4096, 1), (2 * MIB, 0)), warnings
        one.do("kvshm.remove(a.name, force=True); a.close(); log.clear()")
        if page == 4096:
            error = one.fails(f"kvshm.Arena.create({arena_name!r}, size='64MiB', "
                              "block_bytes='1MiB', huge='require')")
            assert error.kind == "Unsupported"
            assert "2 MiB" in error.text and "huge=advise" in error.text
        one.do(f"a = kvshm.Arena.create({arena_name!r}, size='64MiB', block_bytes='1MiB', "
               "huge='off')")
        one.do("kvshm.remove(a.name, force=True)")
        assert not [t for _, t in one.get("log") if "pages" in t]


def test_huge_pages_taken_by_another_afterwards(fresh_player, tmp_path):
    """S46: what was reserved at creation stays."""
    with pool(40):
        one = fresh_player(under=on_mount(tmp_path, "pagesize=2M", "hugetlbfs"))
        one.do(f"a = kvshm.Arena.create('s46', size='32MiB', block_bytes='1MiB', "
               f"dir={str(tmp_path)!r}, huge='require')")
        assert one.get("a.info().page_bytes") == 2 * MIB
        rival = fresh_player()
        rival.do("""
            import mmap
            taken = []
            try:
                for _ in range(64):     # anonymous, shared, huge
                    m = mmap.mmap(-1, 2 << 20, flags=0x01 | 0x20 | 0x40000)
                    m[0] = 1
                    taken.append(m)
            except OSError:
                pass
        """)
        assert rival.get("len(taken)") >= 16
        one.do("lease = store(a, raw_keys(0, a.blocks))")
        assert one.get("verify(lease, raw_keys(0, a.blocks))") == []


@pytest.mark.parametrize("limit, mebibytes", [(64 << 10, 128), (8 << 20, 128), (8 << 20, 6)],
                         ids=["64KiB", "8MiB", "enough"])
def test_lock_limit(player, new_name, limit, mebibytes):
    """S47: as a user without the privilege to lock."""
    need_root()
    size, enough = mebibytes * MIB, mebibytes * MIB <= limit
    one = player()
    try:
        one.do(f"import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))")
    except AssertionError as error:
        pytest.skip(f"the memlock limit cannot be set to {limit}: {error}")
    one.do(become(ALICE))
    for mode in ("auto", "require", "off"):
        name = new_name()
        one.do("log.clear()")
        create = (f"a = kvshm.Arena.create({name!r}, size={size}, block_bytes='1MiB', "
                  f"pin={mode!r}, huge='off')")
        if mode == "require" and not enough:
            error = one.fails(create)
            assert error.kind == "Unsupported" and str(limit) in error.text
            assert str(size) in error.text and "ulimit -l" in error.text
            assert not Path("/dev/shm", f"kvshm.{name}").exists()
            continue
        one.do(create)
        pinned = mode != "off" and enough
        assert one.get("bool(a.info().pinned)") is pinned
        locked = [line for line in Path(f"/proc/{one.pid}/status").read_text().splitlines()
                  if line.startswith("VmLck")][0].split()[1]
        assert int(locked) * 1024 == (size if pinned else 0)
        lines = [t for level, t in one.get("log") if "pin" in t]
        if mode == "auto" and not enough:
            line, = lines
            assert str(limit) in line and str(size) in line
        else:
            assert lines == []
        one.do("kvshm.remove(a.name, force=True); a.close()")
