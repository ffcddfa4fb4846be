# SPDX-License-Identifier: Apache-2.0
"""The C API as it is written: kvshm.h and the parts that it includes."""
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "include"
NAMES = sorted(path.name for path in FOLDER.glob("*.h"))


def text() -> str:
    """All of it, one after the other."""
    return "\n".join((FOLDER / name).read_text() for name in NAMES)
