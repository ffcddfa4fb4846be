# SPDX-License-Identifier: Apache-2.0
"""policy_project/ stands for somebody else's: it builds on the wheel alone, and its policies rule.

One scorer is compiled against kvshm.eviction's .pxd, one is Python and subclasses Marker, one
subclasses Policy and is a table."""
import json
import shutil
from pathlib import Path

import pytest
from support.building import clean_environment, pip, run

PROJECT = Path(__file__).resolve().parent / "policy_project"


@pytest.fixture(scope="module")
def said(wheel_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    from support import PREFIX, remove_leftovers

    project = tmp_path_factory.mktemp("policies") / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", "*.cpp"))
    pip("install", "--no-build-isolation", "--no-deps", project, python=wheel_python)
    try:
        return json.loads(run(wheel_python, project / "check.py", f"{PREFIX}policy",
                              cwd=project.parent, env=clean_environment()))
    finally:
        remove_leftovers(f"{PREFIX}policy")


def test_it_ran_on_the_wheel(said: dict, wheel_python: Path) -> None:
    assert Path(said["kvshm"]).is_relative_to(wheel_python.parents[1])
    assert said["broken"] == []


def test_compiled_scorer_keeps_the_heads_of_chains(said: dict) -> None:
    assert said["heads"] == {"marked": 8, "oldest_first": True, "left": [4, 4]}


def test_python_scorer_takes_from_the_largest_tenant(said: dict) -> None:
    """Six marks, all of the tenant with twelve blocks; a reserve that is full is left alone."""
    assert said["fair"] == {"marked": [6, 0], "in_all": 6, "of_the_large": 6, "few_left": 4}


def test_table_of_a_subclass_rules_the_arena(said: dict) -> None:
    assert said["table"] == {"name": "halflife-2", "version": 2,
                             "shift": [0, 0, 2, 2, 4, 4, 4, 4] + [6] * 8}
