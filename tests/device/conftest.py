# SPDX-License-Identifier: Apache-2.0
"""Fixtures for registration with a device: the mock, as a library and as a CUDA driver."""
from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kvshm.core")

from support.arenas import arena, make_arena  # noqa: E402
from support.mock_device import build  # noqa: E402

__all__ = ["arena", "make_arena"]


@pytest.fixture(scope="session")
def mock_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("mock"))


@pytest.fixture(scope="session")
def fake_cuda_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"), cuda=True, nvrtc=True)
