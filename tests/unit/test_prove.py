# SPDX-License-Identifier: Apache-2.0
"""tools/prove: its verdict follows from what the stages gave, and from what they did not give."""
from __future__ import annotations

import copy
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvshm.tools.proof import child, main, report
from kvshm.tools.proof.progress import Progress, fraction
from kvshm.tools.proof.stages import QUICK, STAGES, Scale, Work
from kvshm.tools.proof.verdict import Verdict, judge

KILLS, EXECUTIONS = 1000, 500
GOOD: dict[str, Any] = {
    "build": {"built": True},
    "models": {"unexpected": [], "steps_never_taken": [], "controls_absent": [], "rows": [
        {"name": "fill", "control": "", "as_expected": True, "states": 70},
        {"name": "fill: A", "control": "join without seq", "as_expected": True, "states": 30},
        {"name": "slots: B", "control": "lock file", "as_expected": True, "states": 5}]},
    "sweep": {"kills": 300, "violations": 0, "steps": {"a": 200, "b": 100, "c": 0}},
    "torture": {"kills": 900, "violations": 0, "violation_texts": [],
                "by_step": {"a": 5, "b": 0, "c": 2}, "by_way": {"step": 7},
                "by_state": {"READY": 1}, "by_operation": {"match": 3}},
    "controls": {"controls": {
        "join_any": {"control": "join without seq", "caught_by": ["torture"], "saw": {}},
        "late": {"control": "region bit late", "caught_by": ["sweep"], "saw": {}}}},
    "fuzz": {"executions": 600, "crashes": 0, "targets": {}},
}


def verdict(change: dict[str, Any] | None = None, without: str = "", error: str = "",
            wanted: list[str] | None = None, every_step: bool = True) -> Verdict:
    """Of the good results with some entries replaced ("stage.entry") or a stage left out."""
    given = copy.deepcopy(GOOD)
    for path, value in (change or {}).items():
        at: Any = given
        *way, last = path.split(".")
        for name in way:
            at = at[int(name)] if isinstance(at, list) else at[name]
        at[last] = value
    given.pop(without, None)
    errors = {without: error} if error else {}
    return judge(wanted or list(STAGES), given, errors, KILLS, EXECUTIONS, every_step)


def test_good_results_hold() -> None:
    v = verdict()
    assert v.holds, v.failures
    assert v.summary["kills"] == 1200 and v.summary["violations"] == 0
    assert v.summary["model_states"] == 105
    assert v.summary["controls"] == v.summary["controls_caught"] == 3
    assert v.summary["controls_caught_by"]["join without seq"] == ["model", "torture"]
    assert v.summary["steps_covered"] == v.summary["steps"] == 3
    assert v.summary["kills_by_step"] == {"a": 205, "b": 100, "c": 2}
    assert (v.summary["fuzz_executions"], v.summary["fuzz_crashes"]) == (600, 0)


@pytest.mark.parametrize("change, said", [
    ({"torture.violations": 2, "torture.violation_texts": ["block 3"]}, "torture: 2 violations"),
    ({"sweep.violations": 1}, "sweep: 1 violations"),
    ({"torture.kills": 600}, "900 kills, wanted 1,000"),
    ({"torture.by_step": {"a": 5, "b": 0, "c": 0}}, "nobody died at c"),
    ({"models.unexpected": ["fill"]}, "models, unexpected: fill"),
    ({"models.steps_never_taken": ["fill.3"]}, "models, steps never taken: fill.3"),
    ({"models.controls_absent": ["x"]}, "models, controls absent: x"),
    ({"models.rows": []}, "no state was searched"),
    ({"models.rows.2.as_expected": False}, "controls that nothing saw: lock file"),
    ({"controls.controls.late.caught_by": []}, "controls that nothing saw: region bit late"),
    ({"fuzz.crashes": 1}, "fuzz: 1 crashes"),
    ({"fuzz.executions": 499}, "fuzz: 499 executions, wanted 500"),
])
def test_whatever_is_wrong_is_a_failure(change: dict[str, Any], said: str) -> None:
    v = verdict(change)
    assert not v.holds
    assert said in "; ".join(v.failures)


def test_what_a_worker_said_before_its_end_is_kept(stages: dict[str, Any], tmp_path: Path) -> None:
    stages["torture"] |= {"violations": 1, "violation_texts": ["signal 6"],
                          "last_words": [["double free or corruption", "kvshm_torture(work+0x2)"]]}
    assert main.main(["--json", "--out", str(tmp_path / "prove.json")], root=tmp_path) == 1
    page = (tmp_path / "prove.md").read_text()
    assert "double free or corruption\nkvshm_torture(work+0x2)\n```" in page


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_stage_that_is_missing_is_a_failure(stage: str) -> None:
    assert f"{stage}: it gave no result" in verdict(without=stage).failures
    assert f"{stage}: it hung" in verdict(without=stage, error="it hung").failures


def test_a_control_that_one_side_sees_is_caught() -> None:
    v = verdict({"controls.controls.join_any.caught_by": []})
    assert v.holds, v.failures
    assert v.summary["controls_missed_in_cpp"] == ["join_any"]
    assert not verdict({"controls.controls.join_any.caught_by": []},
                       wanted=["controls"], without="models").holds


def test_a_part_is_judged_by_what_was_asked_for() -> None:
    given = {"torture": {**GOOD["torture"], "kills": 1000}}
    assert judge(["torture"], given, {}, KILLS, EXECUTIONS).holds
    assert not judge(["torture", "fuzz"], given, {}, KILLS, EXECUTIONS).holds
    assert verdict({"torture.by_step": {"c": 0}, "sweep.steps": {"c": 0}}, every_step=False).holds


# ---- the command ---------------------------------------------------------------------------------

@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stages that give GOOD's facts at once; a test may change them."""
    given = copy.deepcopy(GOOD)
    given["torture"]["kills"], given["fuzz"]["executions"] = 200_000, 20_000_000

    def stage(name: str) -> Any:
        def run(work: Work, say: Any) -> Any:
            say("1 of 2")
            if isinstance(given[name], Exception):
                raise given[name]
            return given[name]
        return run

    for name, one in STAGES.items():
        monkeypatch.setitem(STAGES, name, replace(one, run=stage(name)))
    return given


def test_exit_status_and_document(stages: dict[str, Any], tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--json", "--out", str(tmp_path / "prove.json")], root=tmp_path) == 0
    doc = json.loads(capsys.readouterr().out)
    for name, _ in report.SHOWN:
        assert isinstance(doc[name], int), name
    assert doc["holds"] and doc["stages"]["torture"]["kills"] == 200_000
    assert json.loads((tmp_path / "prove.json").read_text()) == doc
    page = (tmp_path / "prove.md").read_text()
    assert "| region bit late | sweep |" in page and "| READY | 1 |" in page
    assert "It holds." in page


@pytest.mark.parametrize("stage", list(STAGES))
def test_exit_status_of_a_stage_that_fails(stages: dict[str, Any], stage: str, tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    stages[stage] = child.StageError("it hung")
    assert main.main([], root=tmp_path) == 1
    told = capsys.readouterr()
    assert f"{stage}: it hung" in told.err and "It does not hold." in told.out


def test_only_what_is_asked_for_is_run(stages: dict[str, Any], tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    stages["fuzz"] = child.StageError("not asked for")
    assert main.main(["--stage", "sweep", "--stage", "torture", "--json"], root=tmp_path) == 0
    assert list(json.loads(capsys.readouterr().out)["stages"]) == ["sweep", "torture"]
    assert main.main(["--build", str(tmp_path), "--json"], root=tmp_path) == 1
    assert "build" not in json.loads(capsys.readouterr().out)["stages"]


def test_the_scale_is_that_of_the_target() -> None:
    assert Scale().kills >= 100_000 and Scale().fuzz_executions >= 10_000_000
    assert sum(stage.full for stage in STAGES.values()) <= 40 * 60
    assert sum(stage.brief for stage in STAGES.values()) <= 5 * 60


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)


def test_the_controls_are_those_of_the_programs(tmp_path: Path) -> None:
    """One that the sweep sees, one that the torture sees, one that hangs up on both."""
    tests = tmp_path / "cpp" / "tests"
    program(tests / "sweep", """echo '{"seen": {"A": "x", "B": "", "C": ""}, "missed": ["B", "C"]}'
exit 1""")
    program(tests / "kvshm_torture", """case "$*" in
  --list) printf 'shape tiny\\ncontrol  a  A\\ncontrol  b  B\\ncontrol  c  C\\n' ;;
  *"--control b"*) echo '{"violations": 1, "violation_texts": ["block 3"]}'; exit 1 ;;
  *"--control c"*) exit 2 ;;
  *) echo '{"violations": 0, "violation_texts": []}' ;;
esac""")
    full, brief = (STAGES["controls"].run(Work(tmp_path, tmp_path, scale), lambda line: None)
                   for scale in (Scale(control_seconds=1), QUICK))
    assert {name: one["caught_by"] for name, one in full["controls"].items()} == {
        "a": ["sweep"], "b": ["torture"], "c": []}
    assert full["controls"]["b"]["saw"] == {"torture": "block 3"}
    assert [one["caught_by"] for one in brief["controls"].values()] == [["sweep"], [], []]
    assert judge(["controls"], {"controls": full}, {}, 0, 0).failures == [
        "controls that C++ did not see: c"]


# ---- children and progress -----------------------------------------------------------------------

def python(code: str, seconds: float = 20) -> dict[str, Any]:
    return child.document([sys.executable, "-c", code], seconds, lambda line: None)


def test_a_program_that_gives_no_document_is_an_error() -> None:
    assert python("print('{\"kills\": 3}')") == {"kills": 3, "exit": 0}
    assert python("import sys; print('{}'); sys.exit(1)") == {"exit": 1}
    for code in ("print('no JSON')", "print('[]')", "import sys; print('{}'); sys.exit(2)",
                 "import os; print('{}', flush=True); os.abort()"):
        with pytest.raises(child.StageError, match="ended with status"):
            python(code)
    with pytest.raises(child.StageError, match="not over within"):
        python("import time; time.sleep(60)", 0.5)
    with pytest.raises(child.StageError, match="No such file"):
        child.document(["/no/such/program"], 1, lambda line: None)


def test_how_far_a_program_has_come_is_read_from_its_lines() -> None:
    assert fraction("12.0 s  25 of 100 kills, 3 rounds") == 0.25
    assert fraction("[3/12] fill: 3 slots") == 0.25
    assert fraction("9 s  2,500 of 10,000 (25 %) inputs") == 0.25
    assert fraction("linking") is None and fraction("0/0") is None


def test_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    progress = Progress([("sweep", 10.0), ("torture", 30.0)], out)
    progress.start("sweep")
    progress.start("torture")
    progress.close()
    first, second = out.getvalue().splitlines()
    assert "sweep: begins" in first and "\r" not in out.getvalue()
    assert second.count("#") == 6 and "torture" in second  # a quarter of 24
