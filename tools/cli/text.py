# SPDX-License-Identifier: Apache-2.0
"""Text for people: sizes, ages, aligned columns; colour on a terminal where rich is there."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

SCHEMA = 1


def document(kind: str, **members: Any) -> dict[str, Any]:
    """The head that every JSON document has."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"schema": SCHEMA, "kind": kind, "taken_at": now, **members}


def print_json(value: Any, one_line: bool = False) -> None:
    print(json.dumps(value, indent=None if one_line else 2), flush=one_line)


def size(number: int) -> str:
    """1536 -> 1.5 KiB; three digits at most, none of them a needless zero."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def age(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds)} s"


def moment(seconds: int) -> str:
    """Seconds since the epoch as ISO time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def many(number: int, one: str, more: str = "") -> str:
    """1 process, 2 processes."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def wants_color(no_color: bool) -> bool:
    return not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (),
          color: bool = False, alarm: Sequence[str] = ()) -> str:
    """Aligned columns. right: heads of the columns that are flush right. A cell that contains a
    word of `alarm` is red on a terminal."""
    if color:
        found = _rich_table(head, rows, right, alarm)
        if found is not None:
            return found
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [cell.rjust(width) if name in right else cell.ljust(width)
                 for cell, width, name in zip(row, widths, head, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str],
                alarm: Sequence[str]) -> str | None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell, "bold red" if any(w in cell for w in alarm) else "")
                       for cell in row))
    # As wide as it needs: columns that a narrow terminal wraps are still whole.
    console = Console(width=max(200, *(sum(map(len, row)) + 2 * len(row) for row in [head, *rows])))
    with console.capture() as captured:
        console.print(made)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def pairs(title: str, values: dict[str, Any]) -> str:
    """A section: its title, and one `name  value` a line."""
    values = {k: {True: "yes", False: "no"}[v] if isinstance(v, bool) else v
              for k, v in values.items()}
    width = max(map(len, values), default=0)
    return "\n".join([f"# {title}", *(f"{name:{width}}  {value}".rstrip()
                                      for name, value in values.items())])


def clean(value: str) -> str:
    """A label or file name that others chose: without what would move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in value)
