# SPDX-License-Identifier: Apache-2.0
"""S03: whichever way an attached Python process ends, the arena and the others do not notice."""
import multiprocessing
import os
import sys

import pytest

BODY = """
import os, signal, sys
import kvshm
from support.oracle import raw_keys, store
a = kvshm.Arena.attach({name!r})
keep = a.match(raw_keys(0, 20))
assert len(keep) == 20
fill = a.allocate(3)
print("attached", flush=True)
{ending}
"""
ENDINGS = {
    "return": "",
    "exception": "raise RuntimeError('on purpose')",
    "sys.exit": "sys.exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}
EXPECTED = {"return": 0, "exception": 1, "sys.exit": 3, "SIGKILL": -9}


# A process that starts another one in the way that is asked for, and says how that ended. It is
# itself attached, so a fork of it is a fork of an attached process.
PARENT = r"""
import multiprocessing, os, subprocess, sys
import kvshm
from support.oracle import *
name, how, body = sys.argv[1:4]
a = kvshm.Arena.attach(name)
def run():
    exec(body, {"__name__": "__main__"})
if how == "unrelated":
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=30)
    say([done.returncode, done.stdout + done.stderr])
elif how == "fork":
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1); os.dup2(write, 2)
        sys.stdout = sys.stderr = os.fdopen(write, "w")
        try:
            a.match(raw_keys(0, 1))
            raise AssertionError("the parent's arena worked in a child")
        except kvshm.Forked:
            pass
        try:
            run()
        finally:
            sys.stdout.flush()
        sys.exit(0)
    os.close(write)
    with os.fdopen(read) as text:
        output = text.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # the parent's own attachment is as it was
    assert len(a.match(raw_keys(0, 20))) == 20
    say([status, output])
"""


@pytest.fixture
def owner(player, arena_name):
    one = player()
    one.do(f"""
        a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=4096, reap_interval=0.05)
        lease = store(a, raw_keys(0, 20))
    """)
    return one


def check(owner, player, arena_name):
    owner.do("store(a, raw_keys(1000, 5)).release(); a.reap()")
    assert owner.get("verify(lease, raw_keys(0, 20))") == []
    assert owner.get("a.is_valid()") == []
    assert owner.get("a.stats().blocks_filling") == 0
    d = player()
    d.do(f"a = kvshm.Arena.attach({arena_name!r}); m = a.match(raw_keys(0, 20))")
    assert d.get("verify(m, raw_keys(0, 20))") == [] and d.get("len(m)") == 20
    assert d.end() == 0


@pytest.mark.crash
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("how", ["fork", "unrelated"])
def test_ending(owner, player, start, arena_name, how, ending):
    body = BODY.format(name=arena_name, ending=ENDINGS[ending])
    parent = start(PARENT, arena_name, how, body)
    status, output = parent.hear()
    assert status == EXPECTED[ending], output
    assert "attached" in output
    assert "leaked" not in output and "resource_tracker" not in output
    assert parent.wait() == 0, parent.stderr()
    check(owner, player, arena_name)


@pytest.mark.crash
def test_spawn(owner, player, arena_name, capfd, monkeypatch):
    """multiprocessing's spawn brings the resource tracker along, which unlinks what it knows."""
    context = multiprocessing.get_context("spawn")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for ending, code in ENDINGS.items():
        body = BODY.format(name=arena_name, ending=code)
        process = context.Process(target=exec, args=(body, {"__name__": "__main__"}))
        process.start()
        process.join(30)
        assert process.exitcode == EXPECTED[ending]
        check(owner, player, arena_name)
    output = "".join(capfd.readouterr())
    assert "leaked" not in output, output
    assert output.count("attached") == len(ENDINGS)
