# SPDX-License-Identifier: Apache-2.0
"""S10, S36: rights on the arena object, and what other users leave behind."""
import grp
import os

import kvshm
import pytest
from support import shm_dir
from support.users import ALICE, BOB, MALLORY, become, need_root


@pytest.fixture
def group():
    """A group of this host for an arena that two users share."""
    need_root()
    for name in ("users", "games", "nogroup"):
        try:
            return grp.getgrnam(name)
        except KeyError:
            pass
    pytest.skip("no group to share with")


@pytest.mark.crash
def test_leftovers_of_another_user(player, arena_name, group, rounds):
    """S10: Y attaches and is killed, again and again; X, Y and root each give back what it held."""
    x = player()
    x.do(become(ALICE, groups=(group.gr_gid,)))
    x.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=4096, helper=False, "
         f"group={group.gr_name!r}); store(a, raw_keys(0, 20)).release()")
    path = shm_dir / f"kvshm.{arena_name}"
    assert (path.stat().st_uid, path.stat().st_gid) == (ALICE, group.gr_gid)
    y, root = player(), player()
    y.do(become(BOB, groups=(group.gr_gid,)))
    for one in (y, root):
        one.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False)")
    for number in range(rounds(9, 100)):
        victim = player()
        victim.do(become(BOB, groups=(group.gr_gid,)))
        victim.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False); "
                  "lease = a.match(raw_keys(0, 10)); fill = a.allocate(5)")
        assert victim.get("len(lease)") == 10
        victim.kill()
        reaper = (x, y, root)[number % 3]
        report = reaper.get("a.reap()._asdict()")
        assert (report["holds"], report["fills"], report["slots_cleared"]) == (10, 5, 1)
        assert reaper.get("a.reap().slots_dead") == 0, "no busy retry"
    assert list(shm_dir.glob(f"*{arena_name}*")) == [path], "no file per attach"
    lines = sum(one.get("len([t for _, t in log if 'is gone' in t])") for one in (x, y, root))
    assert lines == rounds(9, 100), "one line per dead process, no flood"
    stranger = player()
    stranger.do(become(MALLORY))
    error = stranger.fails(f"kvshm.Arena.attach({arena_name!r})")
    assert error.kind == "PermissionDenied" and arena_name in error.text


COMMAND = """
import contextlib, io
from kvshm.tools.cli.main import main
def command(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*words])
    return [code, out.getvalue()]
# Everything is imported now: another user may not be able to read this interpreter's modules.
warm = "{name}-" + str(os.getpid())
kvshm.Arena.create(warm, blocks=1, block_bytes=64, helper=False).close()
command("reap", warm)
command("reap", warm, "--yes")
command("reap", "none-of-this-name")
kvshm.remove(warm)
"""


@pytest.mark.crash
def test_the_reap_command(player, arena_name, group):
    """S10: run as the owner, as another member, as root, and as somebody who may not."""
    x, y, root, stranger = (player() for _ in range(4))
    for one in (x, y, root, stranger):
        one.do(COMMAND.replace("{name}", arena_name))
    x.do(become(ALICE, groups=(group.gr_gid,)))
    x.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=4096, helper=False, "
         f"group={group.gr_name!r}); store(a, raw_keys(0, 20)).release()")
    y.do(become(BOB, groups=(group.gr_gid,)))
    stranger.do(become(MALLORY))
    for reaper in (x, y, root):
        victim = player()
        victim.do(become(BOB, groups=(group.gr_gid,)))
        victim.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False); "
                  "lease = a.match(raw_keys(0, 10)); fill = a.allocate(5)")
        victim.kill()
        code, text = stranger.get(f"command('reap', {arena_name!r}, '--yes')")
        assert code == 4 and f"uid {ALICE}" in text and len(text.splitlines()) == 1, text
        code, text = reaper.get(f"command('reap', {arena_name!r})")
        assert code == 1 and str(victim.pid) in text, text
        code, text = reaper.get(f"command('reap', {arena_name!r}, '--yes')")
        assert code == 0, text
        stats = x.get("dict(a.stats())")
        assert stats["blocks_held"] == stats["blocks_filling"] == 0
        assert stats["slots_used"] == 1


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_default_rights(player, arena_name, umask):
    """S36: 0600 whatever the umask; another user gets nowhere."""
    need_root()
    owner, other = player(), player()
    owner.do(f"os.umask({umask}); {become(ALICE)}")
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=16, block_bytes=4096); "
             "lease = store(a, raw_keys(0, 4))")
    path = str(shm_dir / f"kvshm.{arena_name}")
    assert os.stat(path).st_mode & 0o7777 == 0o600
    other.do(become(BOB))
    for call in (f"kvshm.Arena.attach({arena_name!r})", f"kvshm.Arena.open({arena_name!r})",
                 f"kvshm.remove({arena_name!r})", f"kvshm.remove({arena_name!r}, force=True)"):
        error = other.fails(call)
        assert error.kind == "PermissionDenied", (call, error)
        assert path in error.text
    assert other.fails(f"kvshm.Arena.create({arena_name!r}, blocks=1)").kind == "ArenaExists"
    for call in (f"open({path!r}, 'rb')", f"open({path!r}, 'r+b')", f"os.truncate({path!r}, 0)",
                 f"os.unlink({path!r})", f"os.chmod({path!r}, 0o666)"):
        assert other.fails(call).kind == "PermissionError", call
    assert owner.get("verify(lease, raw_keys(0, 4))") == []
    assert owner.get("a.is_valid()") == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_group_rights(player, arena_name, group, umask):
    """S36: with group= exactly that group reads and writes, and nobody else."""
    owner, member, stranger = player(), player(), player()
    owner.do(f"os.umask({umask}); {become(ALICE, groups=(group.gr_gid,))}")
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=16, block_bytes=4096, "
             f"group={group.gr_name!r}); store(a, raw_keys(0, 4)).release()")
    found = os.stat(shm_dir / f"kvshm.{arena_name}")
    assert (found.st_mode & 0o7777, found.st_gid) == (0o660, group.gr_gid)
    member.do(become(BOB, groups=(group.gr_gid,)))
    member.do(f"a = kvshm.Arena.attach({arena_name!r}); m = a.match(raw_keys(0, 4))")
    assert member.get("len(m)") == 4 and member.get("verify(m, raw_keys(0, 4))") == []
    stranger.do(become(MALLORY))
    assert stranger.fails(f"kvshm.Arena.attach({arena_name!r})").kind == "PermissionDenied"


def test_a_group_that_does_not_exist(arena_name):
    with pytest.raises(kvshm.InvalidArgument, match="no-such-group"):
        kvshm.Arena.create(arena_name, blocks=1, block_bytes=64, group="no-such-group")
    assert not (shm_dir / f"kvshm.{arena_name}").exists()
