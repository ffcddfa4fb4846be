# SPDX-License-Identifier: Apache-2.0
"""The wheel with every Python that this machine has, from 3.11 on: built, installed, used."""
import json
import sys
from pathlib import Path

import pytest
from support.building import (ROOT, UNOPTIMISED, build_wheel, clean_environment, find_python,
                              make_venv, run)

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
SMOKE = Path(__file__).resolve().parent / "smoke.py"
MODULES = len(list((ROOT / "src" / "kvshm").rglob("*.pyx")))


def check(python: Path, version: str, name: str, folder: Path) -> None:
    said = json.loads(run(python, SMOKE, name, cwd=folder, env=clean_environment()))
    assert said["python"] == version
    assert Path(said["file"]).is_relative_to(python.parents[1]), "not the wheel's"
    assert said["modules"] >= MODULES
    assert (said["hits"], said["text"], said["refused"]) == (2, "hello", True)
    command = [python.with_name("kvshm"), "stat", name, "--json"]
    assert json.loads(run(*command, cwd=folder, env=clean_environment()))


def test_wheel_of_this_python(wheel_python: Path, arena_name: str, tmp_path: Path) -> None:
    check(wheel_python, OWN, arena_name, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [v for v in ("3.11", "3.12", "3.13", "3.14", "3.15")
                                     if v != OWN])
def test_wheel_of_another_python(version: str, arena_name: str, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    made = build_wheel(tmp_path, f"wheel-{version}", *UNOPTIMISED, python=python)
    assert f"-cp{version.replace('.', '')}-" in made.name
    check(make_venv(tmp_path / "venv", made, python=python), version, arena_name, tmp_path)
