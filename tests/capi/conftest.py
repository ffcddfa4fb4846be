# SPDX-License-Identifier: Apache-2.0
"""The two ways in which kvshm is installed: inside the Python package, and in a prefix."""
import subprocess
from pathlib import Path

import kvshm._capi
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"


@pytest.fixture(scope="session")
def package_prefix() -> Path:
    """The installed Python package: a prefix like any other."""
    # Found by the compiled module: in an editable install the .py files lie elsewhere.
    return Path(kvshm._capi.__file__).parent


@pytest.fixture(scope="session")
def plain_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` makes of the dev build."""
    assert (BUILD / "cpp" / "libkvshm.so.0").exists(), "run `cmake --workflow --preset dev` first"
    prefix = tmp_path_factory.mktemp("prefix")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, timeout=60,
                   capture_output=True)
    return prefix


@pytest.fixture(params=["package", "prefix"])
def prefix(request: pytest.FixtureRequest) -> Path:
    name = {"package": "package_prefix", "prefix": "plain_prefix"}[request.param]
    found = request.getfixturevalue(name)
    assert isinstance(found, Path)
    return found
