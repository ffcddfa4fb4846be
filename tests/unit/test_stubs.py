# SPDX-License-Identifier: Apache-2.0
"""The .pyi files say what the compiled modules are."""
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"
MODULES = sorted(".".join(path.relative_to(SOURCES).with_suffix("").parts)
                 for path in SOURCES.rglob("*.pyx"))

ALLOWED = r"""
.*\.__test__                # Cython's own
.*\.__pyx_capi__
.*\.__buffer__              # a C slot, before Python 3.12
kvshm\.convert\.(Bytes|Handles|Keys)
kvshm\.index\.identity\.(Tokens|Identity\.__init__)
kvshm\.eviction\.policies\.Policy\.__post_init__
kvshm\.eviction\.marks\.BLOCK_DTYPE
"""


def test_every_module_has_a_stub():
    assert len(MODULES) >= 15
    for module in MODULES:
        assert SOURCES.joinpath(*module.split(".")).with_suffix(".pyi").exists(), module


def test_stubs_agree_with_the_modules(tmp_path):
    pytest.importorskip("mypy.stubtest")
    allowlist = tmp_path / "allowlist"
    allowlist.write_text(ALLOWED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", *MODULES, "--allowlist", str(allowlist),
         "--ignore-unused-allowlist", "--concise", "--mypy-config-file",
         str(SOURCES.parent / "setup.cfg")],
        cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
