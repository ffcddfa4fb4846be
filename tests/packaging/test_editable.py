# SPDX-License-Identifier: Apache-2.0
"""pip install -e: an edit of Python is there at once, one of Cython or C++ at the next import."""
import json
import shutil
from pathlib import Path

import pytest
from support.building import ROOT, UNOPTIMISED, clean_environment, make_venv, pip, run

PARTS = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cpp", "include",
         "licenses", "src", "tools"]

LOOK = """\
import ctypes, json, os
import kvshm._version, kvshm.paths
library = ctypes.CDLL(os.path.join(kvshm.paths.library_dir(), "libkvshm.so.0"))
print(json.dumps({"cython": hasattr(kvshm._version, "edited") and kvshm._version.edited(),
                  "cpp": hasattr(library, "kvshm_edited") and library.kvshm_edited(),
                  "python": getattr(kvshm.paths, "edited", False)}))
"""


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_edits_are_seen_by_the_next_import(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, tree / part)
    python = make_venv(tmp_path / "venv", "scikit-build-core", "cython", "cython-cmake", "cffi",
                       "numpy", "posix_ipc")
    pip("install", "--no-deps", "--no-build-isolation", "-C", "build-dir=build/editable",
        "-C", "editable.rebuild=true", "-C", "editable.verbose=false", *UNOPTIMISED, "-e", tree,
        python=python, timeout=700)

    def look() -> dict:
        said = run(python, "-c", LOOK, cwd=tmp_path, timeout=300,
                   env=clean_environment(PATH=f"{python.parent}:/usr/local/bin:/usr/bin:/bin"))
        return json.loads(said.splitlines()[-1])

    assert look() == {"cython": False, "cpp": False, "python": False}
    append(tree / "src" / "kvshm" / "_version.pyx", "\n\ndef edited():\n    return 1\n")
    append(tree / "cpp" / "capi" / "general.cpp",
           'extern "C" __attribute__((visibility("default"))) int kvshm_edited() { return 2; }\n')
    append(tree / "src" / "kvshm" / "paths.py", "\nedited = 3\n")
    assert look() == {"cython": 1, "cpp": 2, "python": 3}
