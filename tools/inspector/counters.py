# SPDX-License-Identifier: Apache-2.0
"""The names of the statistics, from the installed header: the one list that there is.

Their order there is the order of the counters in a slot's record. Read from the header and not
from the compiled core, so that an arena can be inspected where the core does not load.
"""
from __future__ import annotations

import functools
import re
from pathlib import Path

_ENTRY = re.compile(r'X\((\w+),\s*"((?:[^"\\]|\\.)*)"\)')


@functools.cache
def _header() -> str:
    from kvshm.paths import include_dir

    return Path(include_dir(), "kvshm.h").read_text(encoding="utf-8")


def fields(macro: str, text: str | None = None) -> dict[str, str]:
    """Name and meaning of each entry X(name, "meaning") of an X-macro of the header."""
    text = _header() if text is None else text
    found = re.search(rf"^#define {macro}\(X\)((?:.*\\\n)*.*)$", text, re.MULTILINE)
    if not found:
        raise ValueError(f"the header has no list {macro}")
    return dict(_ENTRY.findall(found[1]))


def gauges() -> dict[str, str]:
    return fields("KVSHM_GAUGE_FIELDS")


def totals() -> dict[str, str]:
    return fields("KVSHM_COUNTER_FIELDS")
