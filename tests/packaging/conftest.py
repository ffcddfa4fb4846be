# SPDX-License-Identifier: Apache-2.0
"""The wheel of this checkout, and an environment that has nothing else of it."""
import sys
from pathlib import Path

import pytest
from support.building import OPTIONS, build_wheel, make_venv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only packed here, if tools/bootstrap has compiled it."""
    return build_wheel(tmp_path_factory.mktemp("dist"), "wheel", "--no-build-isolation", *OPTIONS)


@pytest.fixture(scope="session")
def wheel_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, what it requires, and what builds extensions."""
    return make_venv(tmp_path_factory.mktemp("wheel") / "venv", wheel, "cython", "setuptools",
                     python=sys.executable)
