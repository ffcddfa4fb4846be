# SPDX-License-Identifier: Apache-2.0
"""`cmake --install` into a prefix: the C library and what finds it, and no Python anywhere."""
import re
from pathlib import Path

from support import headers

from .conftest import BUILD, ROOT


def test_what_is_installed(plain_prefix: Path) -> None:
    there = {str(path.relative_to(plain_prefix)) for path in plain_prefix.rglob("*")
             if not path.is_dir()}
    targets = {name for name in there if "kvshmTargets" in name}
    assert len(targets) == 2    # one of them by the build type
    notices = {f"share/doc/kvshm/{path.relative_to(ROOT)}"
               for path in (ROOT / "LICENSE", *(ROOT / "licenses").glob("*.txt"))}
    assert len(notices) == 4 and notices <= there
    assert there - targets - notices == {
        *(f"include/{name}" for name in headers.NAMES), "lib/libkvshm.so", "lib/libkvshm.so.0",
        "lib/pkgconfig/kvshm.pc",
        "lib/cmake/kvshm/kvshmConfig.cmake", "lib/cmake/kvshm/kvshmConfigVersion.cmake"}
    assert (plain_prefix / "lib" / "libkvshm.so").readlink() == Path("libkvshm.so.0")


def test_the_build_has_not_looked_for_python() -> None:
    cache = (BUILD / "CMakeCache.txt").read_text()
    assert "CMAKE_CXX_COMPILER:" in cache
    assert re.findall(r"^_?Python.*", cache, re.MULTILINE) == []
    assert re.findall(r"python", (BUILD / "build.ninja").read_text(), re.IGNORECASE) == []


def test_it_is_relocatable(plain_prefix: Path) -> None:
    """No file names the folder of the build or the prefix."""
    for path in plain_prefix.rglob("*"):
        if path.suffix in (".pc", ".cmake", ".h"):
            text = path.read_text()
            assert str(plain_prefix) not in text and str(BUILD.parent) not in text, path
