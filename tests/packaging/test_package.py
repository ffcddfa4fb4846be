# SPDX-License-Identifier: Apache-2.0
"""What the installed package holds, and what it needs."""
import importlib.metadata
import subprocess
import sys
import textwrap
from pathlib import Path

import kvshm
import pytest
from kvshm import paths
from support import headers

PACKAGE = Path(paths.include_dir()).parent


def python(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *args], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_version_is_that_of_the_header():
    header = (PACKAGE / "include" / "kvshm.h").read_text()
    assert f'#define KVSHM_VERSION "{kvshm.__version__}"' in header
    assert importlib.metadata.version("kvshm") == kvshm.__version__


def test_plain_import_needs_numpy_and_posix_ipc_only():
    """Importing kvshm imports nothing else that is not the standard library's."""
    foreign = python("""
        import sys
        before = set(sys.modules)
        import kvshm
        allowed = sys.stdlib_module_names | {"kvshm", "numpy", "posix_ipc"}
        print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - allowed))
    """).split()
    # Not packages: the finder of an editable install, and what Cython's modules share.
    ours = ("_kvshm", "cython_runtime", "_cython")
    assert [name for name in foreign if not name.startswith(ours)] == []


@pytest.mark.parametrize("module", ["kvshm.capi", "kvshm.uring"])
def test_missing_cffi_is_told_with_the_extra(module):
    said = python("""
        import importlib, sys
        sys.modules["_cffi_backend"] = None
        try:
            loaded = importlib.import_module(sys.argv[1])
            loaded.load()
        except ImportError as error:
            print(error)
    """, module)
    assert "kvshm[tools]" in said


def test_requirements_are_as_promised():
    needs = importlib.metadata.requires("kvshm")
    plain = {need.split(">")[0].strip() for need in needs if "extra ==" not in need}
    assert plain == {"numpy", "posix_ipc"}
    extras = set(importlib.metadata.metadata("kvshm").get_all("Provides-Extra"))
    assert {"torch", "tools", "dev"} <= extras


def test_files_for_other_projects_are_in_the_package():
    for name in (*(f"include/{name}" for name in headers.NAMES), "py.typed", "ckvshm.pxd",
                 "lib/libkvshm.so.0", "lib/libkvshm.so", "lib/pkgconfig/kvshm.pc",
                 "lib/cmake/kvshm/kvshmConfig.cmake"):
        assert (PACKAGE / name).exists(), name


def test_no_sources_of_the_build_are_in_the_package():
    if Path(kvshm.__file__).parent != PACKAGE:
        pytest.skip("editable install: the package folder is the source folder")
    for pattern in ("*.pyx", "CMakeLists.txt", "_*_build.py"):
        assert list(PACKAGE.rglob(pattern)) == []
    for name in ("bootstrap", "demo", "test"):
        assert not (PACKAGE / "tools" / name).is_file()


def test_command_is_installed():
    scripts = importlib.metadata.entry_points(group="console_scripts", name="kvshm")
    assert [script.value for script in scripts] == ["kvshm.tools.cli.main:main"]
