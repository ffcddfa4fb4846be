# SPDX-License-Identifier: Apache-2.0
"""Fixtures of support.arenas for the numbered guarantees."""
import os
from pathlib import Path

import pytest
from support.arenas import arena, make_arena

__all__ = ["arena", "make_arena"]


@pytest.fixture
def support_path() -> dict[str, str]:
    """Environment of a worker that imports ``support``."""
    tests = str(Path(__file__).resolve().parent.parent)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))}
