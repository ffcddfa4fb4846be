# SPDX-License-Identifier: Apache-2.0
"""Fixtures of support.arenas for the tests of single modules."""
from support.arenas import arena, make_arena, tests_path

__all__ = ["arena", "make_arena", "tests_path"]
