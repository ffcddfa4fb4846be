# SPDX-License-Identifier: Apache-2.0
"""Another project's Cython module, built by setuptools, calls the C API through our .pxd."""
import subprocess
import sys
from pathlib import Path

SETUP = """\
from Cython.Build import cythonize
from kvshm import paths
from setuptools import Extension, setup

setup(name="downstream", version="1", ext_modules=cythonize([Extension(
    "downstream", ["downstream.pyx"], include_dirs=[paths.include_dir()],
    library_dirs=[paths.library_dir()], runtime_library_dirs=[paths.library_dir()],
    libraries=["kvshm"])], language_level=3))
"""

MODULE = """\
from kvshm.ckvshm cimport kvshm_strerror, kvshm_version


def version():
    return kvshm_version().decode()


def text(int code):
    return kvshm_strerror(code).decode()
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, timeout=110,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_downstream_cimport(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "downstream.pyx").write_text(MODULE)
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path)
    said = run(sys.executable, "-c",
               "import downstream, kvshm, os\n"
               "assert downstream.version() == kvshm.__version__\n"
               "print(downstream.text(-2))", cwd=tmp_path)
    assert said.strip() not in ("", "-2")
