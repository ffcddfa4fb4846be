# SPDX-License-Identifier: Apache-2.0
"""A pool's copies of device memory, on a CUDA driver without a GPU. Only a process that was
started with that driver finds it: all cases run in one of their own."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.mock_device import build

CASES = Path(__file__).with_name("pool_cases.py")


def test_a_pool_on_device_memory(tmp_path):
    driver = build(tmp_path, cuda=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", CASES],
        capture_output=True, text=True, timeout=110, cwd=CASES.parents[2],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)  # and none was skipped
    assert passed and int(passed[1]) >= 9
