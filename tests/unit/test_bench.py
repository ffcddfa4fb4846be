# SPDX-License-Identifier: Apache-2.0
"""tools/bench: the form of its document, and that its verdicts follow from what was measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from kvshm.tools import environments
from kvshm.tools.benchmarks import (arenas, bench, gather, main, p5_disk, pyside, redis, report,
                                    rows, torchside)
from kvshm.tools.benchmarks.mounts import Mounts
from kvshm.tools.benchmarks.native import BenchError, Facts, Role, until
from kvshm.tools.benchmarks.peers.catalog import DISKS, Peer
from kvshm.tools.benchmarks.progress import Progress
from kvshm.tools.benchmarks.rows import AT_LEAST, AT_MOST, Row, Target

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["P1", "P2", "P3", "P4", "P6", "P8", "P9"]

NUMBER = {"type": ["number", "null"]}
SCHEMA = {
    "type": "object",
    "required": ["schema", "machine", "options", "targets"],
    "properties": {
        "schema": {"const": 1},
        "machine": {
            "type": "object",
            "required": ["cpu", "kernel", "page_bytes", "commit", "load"],
        },
        "targets": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["value", "unit", "target", "holds", "spread", "detail"],
                "properties": {
                    "value": NUMBER,
                    "target": NUMBER,
                    "holds": {"type": ["boolean", "null"]},
                    "detail": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["what", "value", "unit", "limit", "sense", "spread",
                                         "blocks", "pages", "processes", "reference", "holds"],
                            "properties": {"value": NUMBER, "limit": NUMBER},
                        },
                    },
                },
            },
        },
    },
}

# A native program, one of whose figures is changed on its way to us.
DOCTORED = """#!{python}
import json, subprocess, sys
child = subprocess.Popen(["{native}", *sys.argv[1:]], stdin=sys.stdin, stdout=subprocess.PIPE,
                         text=True)
for line in child.stdout:
    answer = json.loads(line)
    if sys.argv[1] == "{role}":
        if "{field}" in answer:
            answer["{field}"] = answer["{field}"] * {factor} + {more}
    print(json.dumps(answer), flush=True)
sys.exit(child.wait())
"""


@pytest.fixture(scope="session")
def native() -> Path:
    """The measuring program, built as tools/bench builds it."""
    build = ROOT / "build" / "bench"
    for command in (
        ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DKVSHM_BENCH=ON",
         "-DKVSHM_TESTS=OFF", "-DKVSHM_IO_URING=ON"],
        ["cmake", "--build", build],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return build / "cpp" / "bench" / "kvshm_bench"


def doctored(
    tmp_path: Path, native: Path, role: str, field: str, factor: float, more: float
) -> Path:
    script = tmp_path / f"doctored-{role}-{field}"
    script.write_text(DOCTORED.format(python=sys.executable, native=native, role=role, field=field,
                                      factor=factor, more=more))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def micro(native: Path, only: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "micro", "--json", "--quick", "--blocks",
         "10000", "--rounds", "2", "--only", only, "--native", str(native), "--root", str(ROOT)],
        capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


@pytest.fixture(scope="session")
def quick(native: Path) -> dict[str, Any]:
    before = leftovers()
    status, document = micro(native, ",".join(NAMES))
    assert leftovers() <= before
    broken = [n for n, t in document["targets"].items() if t["holds"] is False]
    assert status == (1 if broken else 0)
    return document


def leftovers() -> set[str]:
    """But those of a bench that another test is running."""
    names = {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)
             if name.startswith(("kvshm.bench-", "kvshm-bench-"))}
    return {name for name in names
            if not (pid := re.match(r"kvshm.bench-(\d+)-", name)) or not alive(int(pid[1]))}


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.timeout(700)
def test_form(quick: dict[str, Any]) -> None:
    jsonschema.validate(quick, SCHEMA)
    assert list(quick["targets"]) == NAMES


def test_every_gate_of_the_targets_is_there(quick: dict[str, Any]) -> None:
    def limits(name: str) -> list[tuple[float, str, str]]:
        return sorted({(r["limit"], r["unit"], r["pages"])
                       for r in quick["targets"][name]["detail"] if r["limit"] is not None})

    huge = "2 MiB" in {r["pages"] for r in quick["targets"]["P3"]["detail"]}
    best = "2 MiB" if huge else "4 KiB"
    assert limits("P1") == [(40, "us", best), (150, "ns", "2 MiB"), (250, "ns", "4 KiB")]
    assert {(40, "ns", "2 MiB"), (60, "ns", "2 MiB"), (80, "ns", "4 KiB"),
            (2, "x", "4 KiB")} <= set(limits("P2"))
    assert (0.9, "x", best) in limits("P3") and (0, "bytes", best) in limits("P3")
    assert {(600, "ns", "4 KiB"), (1500, "ns", "4 KiB")} <= set(limits("P4"))
    assert limits("P6") == [(1.25, "ms/GiB", "2 MiB"), (20, "ms", "4 KiB")]
    assert {(10, "ms", "4 KiB"), (2, "x", "4 KiB")} <= set(limits("P8"))
    assert {(192, "bytes", "4 KiB"), (4 << 20, "bytes", "4 KiB"),
            (4, "bytes", "4 KiB")} <= set(limits("P9"))


def test_references_stand_beside(quick: dict[str, Any]) -> None:
    named = {(name, r["what"]) for name, t in quick["targets"].items() for r in t["detail"]
             if r["reference"]}
    for wanted in ("unordered_map in one", "behind a shared mutex", "dict"):
        assert any(name == "P1" and wanted in what for name, what in named), wanted
    assert ("P3", "memcpy") in named
    assert any(name == "P1" and "redis" in what for name, what in named)
    assert any(r["value"] for r in quick["targets"]["P1"]["detail"] if "from Python" in r["what"])
    answers = [r for r in quick["targets"]["P1"]["detail"] if "redis" in r["what"]]
    assert all((r["value"] is None) == (redis.find() is None) for r in answers)


def test_verdicts_follow_from_the_figures(quick: dict[str, Any]) -> None:
    for name, target in quick["targets"].items():
        gates = [r for r in target["detail"] if r["limit"] is not None and r["value"] is not None]
        for r in gates:
            kept = r["value"] <= r["limit"] if r["sense"] == "<=" else r["value"] >= r["limit"]
            assert r["holds"] is kept
        assert target["holds"] is all(r["holds"] for r in gates), name
        assert (target["value"], target["target"]) in [(r["value"], r["limit"]) for r in gates]


def test_page_sizes_are_those_asked_for(quick: dict[str, Any]) -> None:
    pages = {r["pages"] for t in quick["targets"].values() for r in t["detail"] if r["value"]}
    assert "4 KiB" in pages
    assert pages <= {"2 MiB", "4 KiB", ""}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("only, role, field, factor, more, what", [
    ("P1", "point", "ns", 1000, 0, "look-up + pin + release"),
    ("P3", "read", "bytes_copied", 1, 1, "bytes copied"),
    ("P4", "insert", "ns", 1000, 0, "free ones"),
    ("P6", "attach", "attach_ms", 1000, 0, "attach"),
    ("P9", "store", "bytes", 2, 0, "shared metadata"),
])
def test_a_worse_figure_breaks_its_target(
    tmp_path: Path, native: Path, only: str, role: str, field: str, factor: float, more: float,
    what: str
) -> None:
    status, document = micro(doctored(tmp_path, native, role, field, factor, more), only)
    target = document["targets"][only]
    assert status == 1 and target["holds"] is False
    assert any(r["holds"] is False and what in r["what"] for r in target["detail"])
    sense, value, limit = target["sense"], target["value"], target["target"]
    assert value > limit if sense == AT_MOST else value < limit


def test_one_broken_gate_breaks_the_target() -> None:
    good = Row("fast", 10.0, "ns", limit=20.0)
    bad = Row("slow copy", 0.5, "x", limit=0.9, sense=AT_LEAST)
    aside = Row("a reference", 1e9, "ns", reference=True)
    absent = rows.skipped("huge", "ns", "no huge pages", limit=1.0)
    assert Target("T", "", (good, aside, absent)).holds is True
    broken = Target("T", "", (good, bad, aside, absent))
    assert broken.holds is False and broken.tightest is bad
    assert Target("T", "", (aside, absent)).holds is None
    document = json.loads(report.document("micro", {}, {}, [broken]))
    assert document["targets"]["T"]["not_measured"] == ["huge"]
    assert document["targets"]["T"]["value"] == 0.5


def test_a_limit_of_nothing_is_broken_by_anything() -> None:
    assert Row("copied", 0.0, "bytes", limit=0.0).holds is True
    assert Row("copied", 1.0, "bytes", limit=0.0).holds is False
    assert Row("copied", 1.0, "bytes", limit=0.0).strain > 1


def test_keys_of_the_python_roles() -> None:
    """That they are those of the native ones shows in P1: its Python row matches their blocks."""
    keys = pyside.make_keys(1, 0, 100)
    assert np.array_equal(keys[40:], pyside.make_keys(1, 40, 60))
    assert len({bytes(k) for k in np.concatenate([keys, pyside.make_keys(2, 0, 100)])}) == 200


def test_what_cannot_be_is_refused(native: Path) -> None:
    for wrong in (["--only", "P5"], ["--blocks", "10"], ["--blocks", "many"]):
        done = subprocess.run(
            [sys.executable, "-m", "kvshm.tools.benchmarks", "micro", *wrong, "--native",
             str(native)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "expected" in done.stderr


def test_a_program_that_fails_is_reported() -> None:
    false = shutil.which("false")
    assert false
    done = subprocess.run(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "micro", "--only", "P9", "--quick",
         "--native", false], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "ended with status 1" in done.stderr and "Traceback" not in done.stderr


def test_too_little_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.machine, "meminfo", lambda name: 3 * bench.GIB)
    assert bench.room_for(bench.GIB // 2) == ""
    assert "2.0 GiB wanted" in bench.room_for(2 * bench.GIB)


def test_all_targets_are_in_the_command() -> None:
    assert list(main.MEASURES) == NAMES


@pytest.mark.timeout(300)
def test_the_connectors_figures_come_with_a_page(tmp_path: Path) -> None:
    """Its targets hold or not as the machine is loaded; that they are measured does not depend."""
    done = subprocess.run(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "vllm", "--quick", "--rounds", "1",
         "--json", "--without-peers", "--out", str(tmp_path / "page.md")],
        capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "bench vllm"
    for target in document["targets"].values():
        assert not target["not_measured"]
        assert all(r["value"] > 0 for r in target["detail"] if not r["reference"])
    gates = [r for r in document["targets"]["V1"]["detail"] if r["limit"] is not None]
    assert {r["limit"] for r in gates} == {2000, 500, 50}
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# tools/bench vllm") and "its keys, once" in page


# ---- disk ----------------------------------------------------------------------------------------

SMALL = p5_disk.Disk(p5_disk.default_folder(), 256 << 20, 2, 50, 5000)


def small_bench(native: Path) -> bench.Bench:
    return bench.Bench(str(native), Mounts({}), bench.QUICK, Progress(["P5"]))


def tier_role(stack: ExitStack, one: bench.Bench, folder: Path) -> Role:
    return one.role(stack, "disk", name=one.arena(), file=folder / "tier", bytes=SMALL.file_bytes,
                    block=2 << 20, run=p5_disk.RUN, memory=224 << 20)


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk."""
    with tempfile.TemporaryDirectory(prefix="kvshm-bench-", dir=SMALL.folder) as made:
        yield Path(made)


@pytest.mark.timeout(300)
def test_a_rebuild_is_of_records_that_the_library_wrote(native: Path) -> None:
    before = leftovers()
    [got] = p5_disk._rebuild(small_bench(native), SMALL)
    assert leftovers() <= before
    assert got.value and got.value > 0 and got.unit == "ms" and got.samples == 3
    assert got.blocks and SMALL.slots <= got.blocks < SMALL.slots * 1.1
    assert f"{got.blocks:,} slots" in got.note


@pytest.mark.timeout(300)
def test_a_rebuild_without_its_records_is_no_figure(
    tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = p5_disk._opened

    def emptied(one: bench.Bench, tier: dict[str, Any], **how: object) -> Facts:
        facts = opened(one, tier, **how)
        if how["fill"]:
            os.remove(tier["file"])
        return facts

    monkeypatch.setattr(p5_disk, "_opened", emptied)
    with pytest.raises(BenchError, match="0 blocks of .* are there after a rebuild"):
        p5_disk._rebuild(small_bench(native), SMALL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("there", ["its environment", "nothing", "a driver that fails"])
def test_a_local_disk_stands_beside(
    native: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    peer = DISKS[p5_disk.PEER]
    installed = (environments.folder_of(peer.steps) / "complete").exists()
    if there == "its environment" and not installed:
        pytest.skip("LMCache is not installed here: tools/bench disk does it")

    def prepared(name: str) -> tuple[Path, Peer]:
        if there == "nothing":
            raise environments.Absent("no such package")
        return Path(sys.executable), peer  # in which there is no LMCache

    if there != "its environment":
        monkeypatch.setattr(p5_disk, "prepared", prepared)
    one = small_bench(native)
    with ExitStack() as stack:
        got = p5_disk._peer(one, SMALL, tier_role(stack, one, folder), folder)
    names = ["get", "one get, p50", "one get, p99", "put"]
    assert [r.what for r in got] == [f"{name} of 2 MiB beside LMCache: {who}" for name in names
                                     for who in ("kvshm", "its local disk")]
    assert all(r.reference == r.what.endswith("local disk") for r in got)
    for r in got:
        if r.reference and there != "its environment":
            why = "no such package" if there == "nothing" else "No module named"
            assert r.value is None and r.note.startswith("not measured: ") and why in r.note
        else:
            assert r.value and r.value > 0


# ---- what is left --------------------------------------------------------------------------------


def names_of(pid: int) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"kvshm.bench-{pid}-")]


def left_by_a_killed_one(name: str) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", "import kvshm, os, sys\n"
         f"a = kvshm.Arena.create('{name}'.format(os.getpid()), blocks=8, block_bytes=4096, "
         "helper=False)\nprint(a.name, flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None and made.stdout.readline()
    return made


@pytest.mark.parametrize("name", ["bench-{}-0", "bench-vllm-{}-3", "bench-peers-16-{}"])
def test_what_a_killed_run_left_goes_with_the_next(name: str) -> None:
    dead, alive = left_by_a_killed_one(name), left_by_a_killed_one(name)
    try:
        dead.kill()
        dead.wait(30)
        files = [Path("/dev/shm", "kvshm." + name.format(one.pid)) for one in (dead, alive)]
        assert [file.exists() for file in files] == [True, True]
        with arenas.swept():
            assert [file.exists() for file in files] == [False, True]
        assert files[1].exists()
    finally:
        alive.kill()
        alive.wait(30)
        arenas.sweep()
        assert not files[1].exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("everybody", [True, False], ids=["its group", "itself"])
def test_an_interrupted_run_leaves_nothing(
    native: Path, folder: Path, number: int, everybody: bool
) -> None:
    if not shutil.which("fio"):
        pytest.skip("no fio here: tools/bench disk installs it")
    run = subprocess.Popen(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "disk", "--quick", "--dir", str(folder),
         "--without-peers", "--native", str(native)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until(lambda: bool(names_of(run.pid)), 60, "an arena of the run")
        if everybody:
            os.killpg(run.pid, number)
        else:
            os.kill(run.pid, number)
        _, errors = run.communicate(timeout=30)
    finally:
        run.kill()
        run.wait(30)
    assert run.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert names_of(run.pid) == [] and os.listdir(folder) == []


def test_rows_by_layout_and_their_least_share() -> None:
    got = {name: [{gather.RATE: value}] * 2 for name, value in {
        "store 0": 1.0, "store": 8.0, "load": 9.0, "loop 0": 5.0, "loop 1": 10.0, "back 0": 4.0,
        "back 1": 9.0, "index_select": 3.0}.items()}
    long = gather._rows(got, "a, 32 of 64 KiB", "4 KiB", ["memcpy", "avx2"], [1], short=False)
    assert [(r.value, r.limit) for r in long[:2]] == [(0.8, 0.85), (1.0, 0.85)]
    assert [r.holds for r in long[:2]] == [False, True]
    assert "avx2 10.0, memcpy 5.0" in long[0].note and long[2].reference
    brief = gather._rows(got, "b, 64 of 2 KiB", "4 KiB", ["memcpy", "avx2"], [1], short=True)
    assert all(r.limit is None for r in brief) and brief[-1].value is None
    assert gather.min_ratio(long + brief) == 0.8 and gather.min_ratio(brief) is None


@pytest.mark.torch
def test_what_torch_takes_for_the_same_rows() -> None:
    pytest.importorskip("torch", reason="its indexing is the reference")
    for sizes in gather.LAYOUTS.values():
        small = sizes | {"layers": 2, "dim": 8, "blocks": 4}
        steps = torchside.gather({name: str(value) for name, value in small.items()})
        assert all(step() > 0 for step in steps.values()) and len(steps) == 3


def test_layouts_are_measured_in_their_own_pieces(native: Path) -> None:
    scale = replace(bench.QUICK, copy_blocks=4, rounds=1)
    with ExitStack() as stack:
        progress = Progress(["gather"])
        stack.callback(progress.close)
        one = bench.Bench(str(native), Mounts({"4 KiB": ""}), scale, progress)
        found = gather._one(one, stack, "4 KiB", "heads outermost",
                            gather.LLAMA | {"heads_at": "outermost", "layers": 2})
    assert [r.what for r in found] == ["store: heads outermost, 16 of 8 KiB",
                                       "load: heads outermost, 16 of 8 KiB"]
    assert all(r.value and r.value > 0 for r in found)
