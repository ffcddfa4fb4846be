# SPDX-License-Identifier: Apache-2.0
"""Fixtures of support.arenas for tests that kill."""
from support.arenas import make_arena, tests_path

__all__ = ["make_arena", "tests_path"]
