# SPDX-License-Identifier: Apache-2.0
"""Packages that single tests need and that are too large for .venv: fetched once, kept in the
user's cache folder under a hash of their pins."""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 900  # seconds, for one fetch

# What pip says when a package, or the whole registry, cannot be had.
_ABSENT = ("No matching distribution", "Could not find a version", "Failed to establish",
           "Temporary failure in name resolution", "Read timed out", "Connection refused")


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvshm" / "envs"


def packages(*pins: str) -> Path:
    """A folder for PYTHONPATH with exactly these packages (``name==version``), for this Python.
    The test is skipped where the registry does not have them."""
    python = f"{sys.implementation.cache_tag}-{os.uname().machine}"
    name = hashlib.sha256("\n".join([python, *sorted(pins)]).encode()).hexdigest()[:16]
    folder = cache() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other one's fetch has the limit below
        if not folder.is_dir():
            _fetch(folder, pins)
    return folder


def _fetch(folder: Path, pins: tuple[str, ...]) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
         "--no-deps", "--only-binary", ":all:", "--target", str(part), *pins],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT)
    if done.returncode != 0:
        if any(sign in done.stdout for sign in _ABSENT):
            pytest.skip(f"cannot be had: {' '.join(pins)} ({done.stdout.strip().splitlines()[-1]})")
        raise RuntimeError(f"pip install {' '.join(pins)}:\n{done.stdout}")
    part.rename(folder)
