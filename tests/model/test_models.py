"""The quick rows of the model table, one test each; run.py runs the same with progress."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checker import Row, check, load_table, missing_tools  # noqa: E402

ROWS, CONTROLS = load_table()
QUICK = [row for row in ROWS if not row.full]
MISSING = missing_tools()


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING) or 'spin, gcc'}")
@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    """A model passes in all states; a control fails, and in the check that it is there for."""
    result = check(row)
    assert result.as_expected, f"{result.got} {result.why}, wanted {row.expect} {row.fails}"
    assert result.states > 5


def test_every_control_of_the_protocol_is_in_the_quick_set() -> None:
    assert set(CONTROLS) <= {row.control for row in QUICK if row.fails}


def test_every_model_has_a_passing_row_and_a_control() -> None:
    for file in {row.file for row in ROWS}:
        assert {row.expect for row in QUICK if row.file == file} == {"ok", "bad"}, file


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING) or 'spin, gcc'}")
@pytest.mark.parametrize(
    "row",
    [
        Row("a control that passes", "pending.pml", fails="same_key"),
        Row("a model that fails", "pending.pml", ("NOZERO",)),
        Row("a control that fails elsewhere", "pending.pml", ("NOZERO",), fails="clean"),
        Row("a search that hits its limit", "fill.pml", ("OPS=2",), seconds=1),
    ],
    ids=lambda row: row.name,
)
def test_a_wrong_outcome_is_noticed(row: Row) -> None:
    assert not check(row).as_expected


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING) or 'spin, gcc'}")
def test_a_step_that_is_never_taken_is_noticed() -> None:
    """Without a kill the reaper is out of reach, and with one operation a slot reuse is."""
    unreached = check(Row("no kill", "fill.pml", ("KILLS=0", "NP=2"))).unreached
    assert unreached == {"fill.3", "fill.19", "fill.20", "fill.21", "fill.22"}
