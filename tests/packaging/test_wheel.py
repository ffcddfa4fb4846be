# SPDX-License-Identifier: Apache-2.0
"""What is in the wheel, file by file: all that others build on, and nothing of the build."""
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support import headers
from support.building import ROOT

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SOURCES = ROOT / "src" / "kvshm"


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def under(folder: Path, package: str, *patterns: str) -> set[str]:
    return {f"{package}/{path.relative_to(folder)}" for pattern in patterns
            for path in folder.rglob(pattern)}


def test_native_part(names: set[str]) -> None:
    native = {*(f"include/{name}" for name in headers.NAMES), "lib/libkvshm.so",
              "lib/libkvshm.so.0", "lib/pkgconfig/kvshm.pc",
              *(f"lib/cmake/kvshm/kvshm{name}.cmake" for name in (
                  "Config", "ConfigVersion", "Targets", "Targets-release"))}
    inside = {name for name in names if name.startswith(("kvshm/lib/", "kvshm/include/"))}
    assert inside == {f"kvshm/{name}" for name in native}


def test_every_module_is_compiled_with_its_declarations(names: set[str]) -> None:
    sources = under(SOURCES, "kvshm", "*.pyx")
    assert len(sources) >= 15
    wanted = {name.removesuffix(".pyx") + SUFFIX for name in sources}
    wanted |= {f"kvshm/_capi{SUFFIX}", f"kvshm/_uring{SUFFIX}"}
    assert {name for name in names if name.endswith(".so")} - {"kvshm/lib/libkvshm.so"} == wanted
    assert under(SOURCES, "kvshm", "*.pxd", "*.pyi") <= names
    assert "kvshm/py.typed" in names


def test_tools_are_there_with_their_data(names: set[str]) -> None:
    assert under(ROOT / "tools", "kvshm/tools", "*.py", "*.txt", "*.html", "*.css", "*.js") <= names


def test_nothing_else_is_in_it(names: set[str]) -> None:
    """Only known kinds of files: no sources of the build, no tests, no executables, no caches."""
    native = {name for name in names if name.startswith(("kvshm/lib/", "kvshm/include/"))}
    rest = {name for name in names - native
            if ".dist-info/" not in name and not name.startswith("kvshm/tools/")}
    kinds = {".py", ".pyi", ".pxd", ".typed", ".so"}
    assert {name for name in rest if Path(name).suffix not in kinds} == set()
    assert {name for name in rest if name.endswith("_build.py")} == set()
    assert {name for name in names if name.startswith("kvshm/tools/")
            and Path(name).suffix in ("", ".pyc")} == set()
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"kvshm"}


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.partition(".dist-info/")[2]: archive.read(name).decode()
                  for name in archive.namelist() if ".dist-info/" in name}
    assert inside["entry_points.txt"].split() == [
        "[console_scripts]", "kvshm", "=", "kvshm.tools.cli.main:main"]
    assert "Root-Is-Purelib: false" in inside["WHEEL"]
    assert inside["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "License-Expression: Apache-2.0" in inside["METADATA"]
    assert "Requires-Python: >=3.11" in inside["METADATA"]


def test_it_is_relocatable(wheel: Path) -> None:
    """No text file names a folder of the machine that built it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith((".pc", ".cmake", ".h", "libkvshm.so")):
                text = archive.read(name).decode()
                assert str(ROOT) not in text and "/tmp/" not in text, name
