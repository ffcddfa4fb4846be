# SPDX-License-Identifier: Apache-2.0
"""Every C and C++ test as a case of pytest: one report, one count, one command.

The tests are those of the build folder of the preset dev (or of KVSHM_CTEST_DIR).
"""
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("KVSHM_CTEST_DIR", ROOT / "build" / "dev"))


def listed() -> list[dict[str, Any]]:
    """What ctest would run, or [] without a build."""
    if not (BUILD / "CTestTestfile.cmake").exists():
        return []
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=BUILD, capture_output=True,
                           text=True, check=True, timeout=120)
    return list(json.loads(shown.stdout)["tests"])


TESTS = listed()


def properties(test: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry["value"] for entry in test.get("properties", [])}


def test_there_are_native_tests() -> None:
    """An empty list would pass unseen."""
    assert TESTS, f"no native tests in {BUILD}: run `cmake --workflow --preset dev`"


# Without the bytes of its parameter, addresses among them, which are others at each listing: the
# workers of one run must know a test by one name.
@pytest.mark.parametrize("test", [pytest.param(test, id=test["name"].split("  # GetParam()")[0])
                                  for test in TESTS])
def test_native(test: dict[str, Any]) -> None:
    if "command" not in test:
        pytest.fail(f"{test['name']} is not built: run `cmake --build --preset dev`")
    has = properties(test)
    env = dict(os.environ)
    for assignment in has.get("ENVIRONMENT", []):
        name, _, value = assignment.partition("=")
        env[name] = value
    done = subprocess.run(
        test["command"], cwd=has.get("WORKING_DIRECTORY", BUILD), env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        errors="replace", timeout=float(has.get("TIMEOUT", 110)))
    if has.get("SKIP_RETURN_CODE") == done.returncode or "[  SKIPPED ]" in done.stdout:
        pytest.skip(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "by itself")
    assert done.returncode == 0, f"{' '.join(test['command'])}\n{done.stdout}"
