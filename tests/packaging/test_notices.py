# SPDX-License-Identifier: Apache-2.0
"""The notices of what is linked into the library go wherever the library goes.

That `cmake --install` puts them beside it is in tests/capi/test_prefix.py.
"""
import re
import zipfile
from pathlib import Path

import pytest
from support.building import ROOT

NOTICES = {path.stem: path.read_text() for path in (ROOT / "licenses").glob("*.txt")}
# As cpp/cmake/dependencies.cmake calls it -> its notice, its Debian package, the licence's heading
# in that package, the holder of the rights.
LINKED = {"SODIUM": ("libsodium", "libsodium-dev", "ISC", "Frank Denis"),
          "URING": ("liburing", "liburing-dev", "MIT", "Jens Axboe"),
          "XXHASH": ("xxhash", "libxxhash-dev", "BSD-2-clause", "Yann Collet")}


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def test_every_library_that_is_linked_in_has_one() -> None:
    found = re.findall(r"KVSHM_(\w+)_INCLUDE\b",
                       (ROOT / "cpp" / "cmake" / "dependencies.cmake").read_text())
    assert set(found) == set(LINKED)
    assert set(NOTICES) == {notice for notice, *_ in LINKED.values()}


@pytest.mark.parametrize("library", LINKED)
def test_it_is_the_text_of_the_package(library: str) -> None:
    notice, package, heading, holder = LINKED[library]
    assert re.search(rf"^Copyright \(c\) .*{holder}", NOTICES[notice], re.MULTILINE)
    installed = Path("/usr/share/doc") / package / "copyright"
    if not installed.exists():
        pytest.skip(f"{installed} is not here to compare with: not Debian, or without {package}")
    # A paragraph "License: HEADING" with its text in the indented lines below.
    texts = re.findall(rf"^License: {heading}\n((?: .*\n)+)", installed.read_text(), re.MULTILINE)
    assert texts, f"{installed} has no text of {heading}"
    assert words(texts[0]) in words(NOTICES[notice])


def test_they_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.partition(".dist-info/licenses/")[2]: archive.read(name).decode()
                  for name in archive.namelist() if ".dist-info/licenses/" in name}
    assert inside.pop("LICENSE") == (ROOT / "LICENSE").read_text()
    assert inside == {f"licenses/{stem}.txt": text for stem, text in NOTICES.items()}
