# SPDX-License-Identifier: Apache-2.0
"""Wheels and environments, made as a user makes them: for the tests of packaging."""
import contextlib
import fcntl
import glob
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
# As tools/bootstrap: nothing is compiled twice for want of the same options.
OPTIONS = ("-C", "cmake.define.KVSHM_IO_URING=ON")
# Compiles fastest. Whether it works with another Python does not hang on how fast it runs.
UNOPTIMISED = (*OPTIONS, "-C", "cmake.build-type=Debug", "-C",
               "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0", "-C",
               "cmake.define.CMAKE_C_FLAGS_DEBUG=-O0")


def run(*command: object, timeout: float = 110, **options) -> str:
    """What it said; its failure is the test's."""
    done = subprocess.run([str(word) for word in command], text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def clean_environment(**more: str) -> dict[str, str]:
    """Without what points a Python at other packages than its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}


def pip(*args: object, python: object = sys.executable, timeout: float = 400) -> str:
    """The pip of this environment, working on another. Where there is no package index the test
    cannot say anything, and is skipped; not so in continuous integration."""
    env = clean_environment(PIP_CONSTRAINT=str(CONSTRAINTS))
    if "--no-build-isolation" not in args:    # there pip refuses it
        env["PIP_BUILD_CONSTRAINT"] = str(CONSTRAINTS)
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check",
               "--no-input", "--retries", "1", *args]
    try:
        return run(*command, timeout=timeout, env=env)
    except AssertionError as failed:
        signs = ("NewConnectionError", "No matching distribution")
        if any(sign in str(failed) for sign in signs) and not os.environ.get("CI"):
            pytest.skip(f"no package index: {str(failed).splitlines()[-1]}")
        raise


def make_venv(where: Path, *packages: object, python: object = sys.executable) -> Path:
    """An environment with these packages; returns its Python."""
    run(python, "-m", "venv", "--without-pip", where, env=clean_environment())
    made = where / "bin" / "python"
    if packages:
        pip("install", *packages, python=made)
    return made


@contextlib.contextmanager
def _bootstrap_waits(limit: float = 300) -> Iterator[None]:
    """tools/bootstrap builds in the same folder, under this lock."""
    lock = ROOT / ".venv" / "lock"
    if not lock.parent.is_dir():
        yield
        return
    with open(lock, "w") as file:
        end = time.monotonic() + limit
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end, f"{lock} is held for more than {limit} s"
                time.sleep(0.2)
        yield


def build_wheel(out: Path, name: str, *options: object, python: object = sys.executable) -> Path:
    """A wheel of the checkout, in `out`. build/NAME keeps what was compiled."""
    with _bootstrap_waits():
        pip("wheel", "--no-deps", "-w", out, "-C", f"build-dir=build/{name}", *options, ROOT,
            python=python, timeout=600)
    made = list(out.glob("kvshm-*.whl"))
    assert len(made) == 1, made
    return made[0]


def find_python(version: str) -> Path | None:
    """An interpreter of this version, such as "3.13", on the path or where pyenv puts them."""
    homes = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = [*(f"{folder}/python{version}" for folder in os.environ["PATH"].split(os.pathsep)),
             *sorted(glob.glob(f"{homes}/versions/{version}.*/bin/python{version}"))]
    for path in found:
        if os.access(path, os.X_OK) and _is(path, version):
            return Path(path)
    return None


def _is(path: str, version: str) -> bool:
    """pyenv's stand-ins on the path exist for every version and start one or none."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version
