# SPDX-License-Identifier: Apache-2.0
"""What a replay cannot go on with; the command prints it as one line."""
from __future__ import annotations


class ReplayError(Exception):
    """A trace, an option or a file that will not do: what was wanted, what was found."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy
