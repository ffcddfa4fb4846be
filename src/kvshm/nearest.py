# SPDX-License-Identifier: Apache-2.0
"""Which valid name somebody may have meant."""
from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: Any, valid: Iterable[str]) -> str | None:
    """The one of `valid` that is most like `name`, if any is like it at all."""
    by_core = {_core(one): one for one in valid}
    found = difflib.get_close_matches(_core(str(name)), by_core, 1, 0.5)
    return by_core[found[0]] if found else None


def _core(name: str) -> str:
    """What is left to compare of a name as it stands in the environment."""
    return name.lower().removeprefix("kvshm_")


def suggestion(name: Any, valid: Iterable[str]) -> str:
    """"; did you mean X?", or nothing."""
    found = nearest(name, valid)
    return f"; did you mean {found!r}?" if found else ""
