# SPDX-License-Identifier: Apache-2.0
"""Environments for what is too large or too strange for .venv (peers, a real vLLM): outside the
checkout, made once, kept under a hash of their pins."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT = 1500  # seconds, for one call of pip
LOCK_LIMIT = 2 * LIMIT

Steps = Sequence[Sequence[str]]


class Absent(Exception):
    """What cannot be had here, in the words of what refused."""


def cache() -> Path:
    """The user's folder for what kvshm's tools keep: environments, models."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvshm"


def folder_of(steps: Steps, without: Sequence[str] = ()) -> Path:
    python = f"venv {sys.implementation.cache_tag}-{os.uname().machine}"
    words = [python, *(" ".join(step) for step in steps), *(f"without {one}" for one in without)]
    return cache() / "envs" / hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def python_with(name: str, steps: Steps, without: Sequence[str] = ()) -> Path:
    """The interpreter of an environment with exactly these pins, made if it is not there. Each
    step is one call of ``pip install``; packages of ``without`` that they brought are taken out."""
    folder = folder_of(steps, without)
    python = folder / "bin" / "python"
    done = folder / "complete"
    if done.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        _wait_for(lock.fileno(), name)
        if not done.exists():
            # A venv cannot be moved: it is made in place, and `complete` says that it is whole.
            shutil.rmtree(folder, ignore_errors=True)
            _call(name, "a new environment", [sys.executable, "-m", "venv", str(folder)])
            for step in steps:
                _call(name, " ".join(step),
                      [str(python), "-m", "pip", "install", "--disable-pip-version-check",
                       "--no-input", "--only-binary", ":all:", *step])
            if without:
                _call(name, f"without {' '.join(without)}",
                      [str(python), "-m", "pip", "uninstall", "--yes", *without])
            done.touch()
    return python


def frozen(python: Path) -> list[str]:
    """What is installed there, name==version."""
    got = subprocess.run([str(python), "-m", "pip", "freeze", "--disable-pip-version-check"],
                         capture_output=True, text=True, timeout=120)
    return [line for line in got.stdout.splitlines() if "==" in line]


def _call(name: str, what: str, command: list[str]) -> None:
    began = time.monotonic()
    print(f"environment: {name}: {what} ... ", end="", file=sys.stderr, flush=True)
    try:
        got = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print("FAILED", file=sys.stderr, flush=True)
        raise Absent(f"{what}: not installed within {LIMIT} s") from None
    if got.returncode != 0:
        print("FAILED", file=sys.stderr, flush=True)
        errors = [line for line in got.stdout.splitlines() if line.startswith(("ERROR", "E: "))]
        last = got.stdout.strip().splitlines()[-1:]
        raise Absent(f"{what}: {' '.join(errors or last) or 'no reason given'}")
    print(f"done ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)


def _wait_for(descriptor: int, name: str) -> None:
    deadline = time.monotonic() + LOCK_LIMIT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Absent(f"{name}: its environment is being made elsewhere, for more than "
                             f"{LOCK_LIMIT} s") from None
            time.sleep(0.2)


def need(name: str, libraries: Mapping[str, str], programs: Mapping[str, str]) -> None:
    """What it wants of the system; installed where we may."""
    for found, wanted in ((_has_library, libraries), (_has_program, programs)):
        for thing, package in wanted.items():
            if found(thing):
                continue
            if os.geteuid() != 0 or not shutil.which("apt-get"):
                raise Absent(f"no {thing} (Debian and Ubuntu: apt-get install {package})")
            _call(name, f"apt-get install {package}",
                  ["apt-get", "install", "-y", "--no-install-recommends", package])
            if not found(thing):
                raise Absent(f"no {thing}, not even with {package}")


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _has_program(name: str) -> bool:
    return shutil.which(name) is not None
