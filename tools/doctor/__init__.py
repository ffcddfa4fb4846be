# SPDX-License-Identifier: Apache-2.0
"""`kvshm doctor`: what this host, container and user grant, tried out and not read off a version.

Needs no arena, and leaves nothing behind.
"""

from .probe import Options, Probe
from .run import main, run_all

__all__ = ["Options", "Probe", "main", "run_all"]
