# SPDX-License-Identifier: Apache-2.0
"""S26: death and freeze at every step, with stops of 60 s. The program, and the same with stops of
2 s, is cpp/tests/freeze_test.cpp, a native test: it needs a library built with step points."""
import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("KVSHM_CTEST_DIR", Path(__file__).resolve().parents[2] / "build/dev"))


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_stops_of_a_minute(rounds) -> None:
    seconds = rounds(0, 60)
    if not seconds:
        pytest.skip("takes minutes (--full-scenarios); the native test Freeze stops for 2 s")
    program = BUILD / "cpp" / "tests" / "freeze_test"
    assert program.exists(), "run `cmake --workflow --preset dev` first"
    done = subprocess.run([program], capture_output=True, text=True, timeout=3500,
                          env={**os.environ, "KVSHM_STOP_SECONDS": str(seconds)})
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
