# SPDX-License-Identifier: Apache-2.0
"""kvshm doctor: finds what is there, notices what is broken, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvshm.tools import doctor
from kvshm.tools.doctor import limits, pinning, probe, uring

BEHAVIOURS = ["life byte", "life byte, close_range", "life byte, clone", "life byte, exec",
              "lock descriptions", "device byte"]
STATUS = {"ok", "warn", "fail", "skip"}


def named(probes: list[probe.Probe]) -> dict[str, probe.Probe]:
    return {p.name: p for p in probes}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, probe.Probe]:
    options = doctor.Options(tier=tmp_path_factory.mktemp("tier"))
    return named(doctor.run_all(options))


def test_every_probe_answers(answers: dict[str, probe.Probe]) -> None:
    assert list(answers) == [
        "kernel", "cpu", "container", "memory", "numa", "memlock", "nofile", "shm mount",
        "huge page settings", "huge pages", "pinning", "io_uring", "direct I/O", *BEHAVIOURS]
    assert all(p.status in STATUS and p.found for p in answers.values())
    assert not [p for p in answers.values() if p.found.startswith("could not be tried")]


def test_whatever_costs_something_says_what_and_how_to_mend_it(
    answers: dict[str, probe.Probe]
) -> None:
    for p in answers.values():
        if p.status in ("warn", "fail"):
            assert p.costs
        if p.status == "ok":
            assert not p.costs and not p.fix


def test_this_kernel_can_be_relied_on(answers: dict[str, probe.Probe]) -> None:
    assert {name: answers[name].status for name in BEHAVIOURS} == dict.fromkeys(BEHAVIOURS, "ok")


def test_is_quick_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def state() -> tuple[list[str], list[str], list[str]]:
        ours = [x for x in os.listdir("/dev/shm") if x.startswith("kvshm-doctor")]
        return ours, os.listdir(tmp_path), os.listdir("/proc/self/fd")

    before, start = state(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "kvshm.tools.doctor", "--json", "--tier-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=60)
    assert time.monotonic() - start < 5
    assert done.returncode == 0, done.stdout
    assert state() == before
    # No process of the stage lives on: each would have its command line.
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline")
                if str(tmp_path) in read_quietly(p)]


def read_quietly(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_json_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert doctor.main(["--json", "--tier-dir", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1 and document["failed"] == 0
    for entry in document["probes"]:
        assert set(entry) == {"name", "status", "found", "costs", "fix"}


def test_table_lines_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    doctor.main(["--tier-dir", str(tmp_path)])
    lines = [x for x in capsys.readouterr().out.splitlines() if x[:4].strip() in STATUS]
    column = lines[0].index(os.uname().release)
    assert len(lines) == 13 + len(BEHAVIOURS)
    assert all(x[column - 2:column] == "  " and x[column] != " " for x in lines)


def test_arenas_on_a_disk_are_a_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if "tmpfs" in subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True,
                                 text=True, timeout=10).stdout:
        pytest.skip("the test's folder is no disk")
    assert doctor.main(["--dir", str(tmp_path)]) == 1
    assert "fail  shm mount" in capsys.readouterr().out


def test_missing_arena_folder_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--dir", "/nonexistent"]) == 1
    assert "fail  shm mount" in capsys.readouterr().out


def test_tier_in_memory_is_a_warning() -> None:
    found = doctor.direct.direct(doctor.Options(tier=Path("/dev/shm")))
    assert found.status == "warn" and "memory" in found.costs


@pytest.mark.parametrize(
    "state, remedy",
    [
        ({"sysctl": 2}, "io_uring_disabled=0"),
        ({"seccomp": 2}, "seccomp"),
        ({"available": True, "defer_taskrun": True}, "6.1"),  # no registered files
        ({"available": True, "registered_files": True}, "6.1"),  # no DEFER_TASKRUN
    ],
)
def test_refused_io_uring_is_a_warning_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, int], remedy: str
) -> None:
    from kvshm._uring_probe import UringProbe

    monkeypatch.setattr("kvshm.uring.probe", lambda _: UringProbe(**state))
    found = uring.io_uring(doctor.Options())
    assert found.status == "warn" and remedy in found.fix and found.costs


BREAK = """
import sys
from kvshm.tools.doctor import libc, scene
scene.LIMIT = 1
{fault}
scene.main("/dev/shm", sys.argv[1])
"""
FAULTS = {
    "the descriptor's end loses the lock": (
        "libc.map_file = lambda *a: 0\nlibc.advise = lambda *a: None",
        {"life byte", "life byte, close_range"}),
    "a mapping is inherited": ("libc.advise = lambda *a: None", {"life byte, clone"}),
    "a ring keeps no file": (
        "import kvshm.uring\nkvshm.uring.Ring.register_files = lambda *a: None", {"device byte"}),
    "a description sees its own lock": (
        "libc.byte_is_held = lambda *a: True", {"lock descriptions", "life byte"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_kernel_behaviour_is_noticed(fault: str, tmp_path: Path) -> None:
    code, names = FAULTS[fault]
    done = subprocess.run(
        [sys.executable, "-c", BREAK.format(fault=code), str(tmp_path)],
        capture_output=True, text=True, timeout=90)
    failures = {name for name, status, _ in json.loads(done.stdout) if status == "fail"}
    assert names <= failures


def test_failed_behaviour_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play = "import json; print(json.dumps([['device byte', 'fail', 'landed late']]))"
    monkeypatch.setattr(doctor.behaviours, "PLAY", play)
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "fail  device byte" in out and "blocking threads" in out


def test_stage_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.behaviours, "PLAY", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor.behaviours, "LIMIT", 0.3)
    start = time.monotonic()
    [answer] = doctor.behaviours.behaviours(doctor.Options())
    assert answer.status == "fail" and time.monotonic() - start < 5


def test_probe_that_raises_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def shaky(_: doctor.Options) -> probe.Probe:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(doctor.run, "PROBES", [shaky, *doctor.run.PROBES[:1]])
    monkeypatch.setattr(doctor.run, "behaviours", lambda _: [])
    first, second = doctor.run_all()
    assert (first.name, first.status) == ("shaky", "skip") and "unforeseen" in first.found
    assert second.status == "ok"


@pytest.fixture()
def unprivileged() -> Iterator[int]:
    """Runs in a forked child without root's rights: yields 0 there, the child's pid here."""
    if os.geteuid():
        pytest.skip("needs root, to give it up")
    yield os.fork()


def test_small_memlock_limit_is_a_warning_with_its_remedy(unprivileged: int) -> None:
    if unprivileged == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
            os.setgid(65534), os.setuid(65534)
            options = doctor.Options()
            found = [limits.memlock(options), pinning.pinning(options), uring.io_uring(options)]
            assert [p.status for p in found] == ["warn"] * 3, found
            assert all("memlock" in p.fix for p in found), found
            code = 0
        except BaseException as e:
            sys.stderr.write(f"{e!r}\n")
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(unprivileged, 0)[1]) == 0
