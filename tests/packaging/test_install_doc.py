# SPDX-License-Identifier: Apache-2.0
"""docs/install.md names things that exist: lines of the doctor, targets, files."""
import re

from kvshm.tools.doctor import Options
from kvshm.tools.doctor.run import PROBES
from support.building import ROOT

TEXT = (ROOT / "docs" / "install.md").read_text()


def test_lines_of_the_doctor():
    told = {name for line in re.findall(r"`doctor`: (.*?)[|;]", TEXT)
            for name in re.findall(r"\*([^*:]+)", line) if name.strip(", ")}
    assert len(told) >= 8
    assert told - {probe(Options()).name for probe in PROBES} == set()


def test_paths():
    for path in re.findall(r"`((?:tools|tests|docs)/[\w./]+)", TEXT):
        assert (ROOT / path).exists(), path


def test_switches_of_the_build():
    sources = "".join((ROOT / name).read_text() for name in ("CMakeLists.txt",
                                                             "cpp/cmake/dependencies.cmake"))
    for name in set(re.findall(r"KVSHM_[A-Z_]+", TEXT)):
        assert name in sources, name
