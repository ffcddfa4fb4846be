# SPDX-License-Identifier: Apache-2.0
"""Packages that single tests need and that are too large for .venv: fetched once, kept in the
user's cache folder under a hash of their pins."""
from pathlib import Path

import pytest
from kvshm.tools.environments import Absent, python_with

# What pip says when a package, or the whole registry, cannot be had.
_ABSENT = ("No matching distribution", "Could not find a version", "Failed to establish",
           "Temporary failure in name resolution", "Read timed out", "Connection refused",
           "not installed within", "made elsewhere")


def packages(*pins: str) -> Path:
    """A folder for PYTHONPATH with exactly these packages (``name==version``), for this Python.
    The test is skipped where the registry does not have them."""
    try:
        python = python_with("tests", [("--no-deps", *sorted(pins))])
    except Absent as error:
        if not any(sign in str(error) for sign in _ABSENT):
            raise
        pytest.skip(f"cannot be had: {error}")
    (folder,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return folder
