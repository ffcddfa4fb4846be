# SPDX-License-Identifier: Apache-2.0
"""This kvshm, made importable for another Python: a folder for its PYTHONPATH with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kvshm

from ..environments import Absent

LIMIT = 600  # seconds, for building a wheel


def overlay(python: Path, folder: Path) -> Path:
    """Fills the folder (empty or absent) and returns it. Links to what is installed here if that
    is the same version of Python; else builds a wheel of the checkout for it, which takes
    minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    code = "import sys; print(sys.implementation.cache_tag)"
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60,
                          check=True).stdout.strip()
    if told == sys.implementation.cache_tag:
        _link(folder / "kvshm")
    else:
        _install(python, folder)
    return folder


def _link(package: Path) -> None:
    """File by file: an editable install keeps sources and compiled modules in folders apart."""
    package.mkdir()
    (package / "tools").symlink_to(Path(__file__).resolve().parents[1])
    for root in kvshm.__path__:
        for parent, folders, files in os.walk(root):
            here = package / os.path.relpath(parent, root)
            folders[:] = [one for one in folders if one != "__pycache__"]
            if here == package and "tools" in folders:
                folders.remove("tools")
            here.mkdir(exist_ok=True)
            for name in files:
                if not (here / name).exists():
                    (here / name).symlink_to(Path(parent, name).resolve())


def _install(python: Path, folder: Path) -> None:
    root = Path(sys.prefix).parent
    if not (root / "pyproject.toml").is_file():
        raise Absent(f"{python} is another version of Python than {sys.executable}, and there is "
                     "no checkout to build kvshm from")
    got = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps",
         "--disable-pip-version-check", "--no-input", "--target", str(folder), str(root)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT)
    if got.returncode != 0:
        raise Absent(f"kvshm for {python}: {got.stdout.strip()[-2000:]}")
