# SPDX-License-Identifier: Apache-2.0
"""What is shipped does not tell in which folder, or by whose Python, it was built."""
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.building import ROOT


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("binaries")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return sorted(path for path in folder.rglob("*.so*")
                  if path.read_bytes().startswith(b"\x7fELF"))


def test_no_binary_names_the_folder_of_the_build(binaries: list[Path]) -> None:
    assert len(binaries) >= 17    # the library, and every module of the package
    folders = {"the checkout": str(ROOT), "Python's headers": sysconfig.get_path("include")}
    found = {f"{path.name}: {what}" for path in binaries for what, folder in folders.items()
             if folder.encode() in path.read_bytes()}
    assert found == set()


def test_they_still_say_which_line(binaries: list[Path]) -> None:
    """The paths are gone, the debug information is not: a crash report names files and lines."""
    if not shutil.which("objdump"):
        pytest.skip("needs objdump (binutils)")
    library, = (path for path in binaries if path.name == "libkvshm.so.0")
    shown = subprocess.run(["objdump", "--dwarf=decodedline", library], capture_output=True,
                           text=True, timeout=100, check=True).stdout
    assert "kvshm/cpp/blocks/alloc.cpp" in shown
