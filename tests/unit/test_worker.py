# SPDX-License-Identifier: Apache-2.0
"""The second process that most tests here stand on: support.worker."""
import os
import signal
import time
from pathlib import Path

import pytest
from support import PREFIX, WorkerError, remove_leftovers, remove_stale, shm_dir


def test_conversation(worker):
    one = worker("""
        import sys
        print("this goes to stderr, not into the conversation")
        say(sys.argv[1:])
        while True:
            say(hear() * 2)
    """, "a", 7)
    assert one.hear() == ["a", "7"]
    assert one.ask(21) == 42
    assert one.ask("ab") == "abab"


def test_it_is_another_process(worker):
    one = worker("import os; say(os.getpid()); hear()")
    assert one.hear() == one.pid != os.getpid()


def test_kill_is_final(worker):
    one = worker("say(1); hear()")
    one.hear()
    one.kill()
    assert one.process.returncode == -signal.SIGKILL
    assert not Path("/proc", str(one.pid)).exists()
    with pytest.raises(WorkerError):
        one.hear()


def test_silence_has_a_limit_and_a_crash_a_reason(worker):
    silent = worker("hear()")
    start = time.monotonic()
    with pytest.raises(WorkerError, match="said nothing"):
        silent.hear(timeout=0.2)
    assert time.monotonic() - start < 5
    crashed = worker("raise ValueError('seen by the test')")
    with pytest.raises(WorkerError, match="seen by the test"):
        crashed.hear()


def test_ends_with_the_test_process(worker):
    """hear() ends a worker whose test is gone: nothing stays behind a killed pytest."""
    one = worker("hear()")
    one.process.stdin.close()
    assert one.wait() == 0


def test_only_arenas_of_this_run_are_removed(new_name):
    mine = shm_dir / f"kvshm.{new_name()}"
    other = shm_dir / f"kvshm.t-{os.getppid()}-other"
    dead = shm_dir / "kvshm.t-4194305-dead"    # above the kernel's highest process id
    for path in (mine, other, dead):
        path.touch()
    try:
        assert dead.name in remove_stale()
        assert mine.exists() and other.exists()
        assert remove_leftovers(PREFIX) == [mine.name]
        assert other.exists()
    finally:
        other.unlink(missing_ok=True)
