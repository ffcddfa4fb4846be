# SPDX-License-Identifier: Apache-2.0
"""The connector's copies of device memory, on a CUDA driver without a GPU. Only a process that was
started with that driver finds it: all cases run in one of their own."""
from __future__ import annotations

from pathlib import Path

from support.mock_device import run_cases

CASES = Path(__file__).with_name("cuda_cases.py")


def test_device_memory(tmp_path):
    run_cases(CASES, tmp_path, 12)
