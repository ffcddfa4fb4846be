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
