# SPDX-License-Identifier: Apache-2.0
"""Recorded traces, which are data of others and lie outside this repository."""
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"


def trace_path(name: str) -> str:
    """Its file: in a folder of KVSHM_TRACES, or beside the checkout; else the test is skipped."""
    given = os.environ.get("KVSHM_TRACES", "")
    folders = [Path(folder) for folder in given.split(os.pathsep) if folder] or [BESIDE]
    for folder in folders:
        path = folder / f"{name}.jsonl.zst"
        if path.exists():
            return str(path)
    pytest.skip(f"no {name}.jsonl.zst in {', '.join(map(str, folders))}: set KVSHM_TRACES")


@cache
def recorded(name: str, **options: int) -> Any:
    """The trace, read once a process."""
    from kvshm.tools.replay.reading import read_trace

    pytest.importorskip("zstandard")
    return read_trace(trace_path(name), **options)
