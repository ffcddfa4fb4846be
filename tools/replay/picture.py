# SPDX-License-Identifier: Apache-2.0
"""Hit ratio over capacity as a picture: a PNG, or a page that needs nothing but itself."""
from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import Any

from .compare import Point
from .failures import ReplayError

ENDINGS = (".png", ".html")

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 60em }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em; text-align: right }}
th:first-child, td:first-child {{ text-align: left }} tr:nth-child(even) {{ background: #f3f3f3 }}
</style></head><body><h1>{title}</h1>
{svg}
<table><tr><th>policy</th><th>capacity</th><th>blocks</th><th>block %</th><th>token %</th>
<th>compute %</th></tr>
{rows}
</table></body></html>
"""


def check(path: str) -> None:
    """Before the work is done: whether a picture can be written there at all."""
    if not path.endswith(ENDINGS):
        raise ReplayError(f"--compare {path}: wanted a file that ends in {' or '.join(ENDINGS)}")
    _figure()
    try:
        with open(path, "ab"):
            pass
    except OSError as e:
        raise ReplayError(f"--compare {path}: {e.strerror}") from None


def write(path: str, title: str, points: Sequence[Point]) -> None:
    figure = _draw(title, points)
    if path.endswith(".png"):
        figure.savefig(path, format="png", dpi=150)
        return
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    # Inline, an <svg> needs no prolog, no name spaces and no word on who made it.
    svg = re.sub(r"(?s)^.*?(<svg)|<metadata>.*?</metadata>| xmlns(:\w+)?=\"[^\"]*\"",
                 lambda found: found[1] or "", drawn.getvalue())
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(p)) + "</tr>"
        for p in points)
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(title=html.escape(title), svg=svg, rows=rows))


def cells(p: Point) -> list[str]:
    return [p.policy, f"{100 * p.fraction:.3g} %", str(p.blocks),
            *(f"{100 * share:.2f}" for share in p.ratios)]


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReplayError("a picture needs the package matplotlib",
                          "pip install 'kvshm[plots]', or --json for the figures alone") from None
    return Figure(figsize=(9, 5.5), layout="constrained")


def _draw(title: str, points: Sequence[Point]) -> Any:
    figure = _figure()
    axes = figure.subplots()
    for name in dict.fromkeys(p.policy for p in points):
        line = sorted((100 * p.fraction, 100 * p.ratios.block, p.reference)
                      for p in points if p.policy == name)
        x, y, reference = zip(*line, strict=True)
        axes.plot(x, y, label=name, marker=None if reference[0] else "o", markersize=4,
                  linestyle="--" if reference[0] else "-")
    axes.set_xscale("log")
    ticks = sorted({round(100 * p.fraction, 3) for p in points})
    axes.set_xticks(ticks, labels=[f"{tick:.3g} %" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("capacity, as a share of the trace's different blocks")
    axes.set_ylabel("block hit ratio, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
