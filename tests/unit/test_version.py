# SPDX-License-Identifier: Apache-2.0
"""Header and library must be of one version."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kvshm
import pytest

HEADER = Path(__file__).resolve().parents[2] / "include" / "kvshm.h"

FAKE = """
#define _GNU_SOURCE
const char *kvshm_version(void) { return "9.9.9"; }
"""


def test_version():
    stated = re.search(r'#define KVSHM_VERSION "(.*)"', HEADER.read_text())[1]
    assert kvshm.__version__ == stated


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_of_another_version_is_refused(tmp_path):
    """A foreign kvshm_version(), preloaded, answers in place of the library's own."""
    (tmp_path / "fake.c").write_text(FAKE)
    map_ = tmp_path / "fake.map"
    map_.write_text("KVSHM_0 { global: kvshm_version; };\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "fake.so", tmp_path / "fake.c",
                    f"-Wl,--version-script={map_}"], check=True, timeout=60)
    done = subprocess.run([sys.executable, "-c", "import kvshm; kvshm.Arena"],
                          capture_output=True, text=True, timeout=60,
                          env={"LD_PRELOAD": str(tmp_path / "fake.so"), "PATH": ""})
    assert done.returncode != 0 and "ImportError" in done.stderr
    assert "9.9.9" in done.stderr and kvshm.__version__ in done.stderr
