# SPDX-License-Identifier: Apache-2.0
"""How much of a load the layer-wise pipeline hides behind the computing of a prompt."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..bench import Bench
from ..native import BenchError, Role
from ..rows import AT_LEAST, Row, row, skipped
from .overlap import side
from .throttle import Refused, Throttle

TITLE = "layer-wise: a load hidden behind the prefill of what follows"
HIDDEN = "layerwise_hidden"
LEAST = 0.8
SHARES = (0.3, 0.6, 0.9)  # of the computing that loading is to take
SLACK = 0.15  # of it, that a round may be off


@dataclass(frozen=True)
class Size:
    tiny: bool = False
    layers: int = 16
    groups: int = 16
    tokens: int = 16  # of a block
    found: int = 32  # blocks on disk
    computed: int = 3  # blocks behind them


QUICK = Size(tiny=True, found=64, computed=16)


def measure(bench: Bench, folder: Path, size: Size, rounds: int) -> list[Row]:
    with ExitStack() as stack:
        try:
            throttle = stack.enter_context(Throttle(folder))
        except Refused as error:
            return [skipped(HIDDEN, "", f"the tier cannot be made slow: {error}",
                            limit=LEAST, sense=AT_LEAST)]
        role = side(bench, stack, "layers", throttle.command, name=bench.arena(),
                    file=folder / "layers", tiny=int(size.tiny), layers=size.layers,
                    groups=size.groups, tokens=size.tokens, found=size.found,
                    computed=size.computed)
        try:
            nbytes = role.facts["bytes"]
        except BenchError as error:
            return [skipped(HIDDEN, "", str(error), limit=LEAST, sense=AT_LEAST)]
        alone = median(role.run("compute 0")["seconds"] for _ in range(3))
        return [one for share in SHARES
                for one in _at(bench, role, throttle, share, nbytes, alone, rounds, size)]


def _at(bench: Bench, role: Role, throttle: Throttle, share: float, nbytes: int, alone: float,
        rounds: int, size: Size) -> list[Row]:
    """Three in a round: loading alone, computing alone, and both."""
    hidden: list[float] = []
    took: dict[str, list[float]] = {"load": [], "compute": [], "both": []}
    what = f"{HIDDEN}, loading {share:.0%} of computing"
    for number in range(3 * rounds):
        bench.progress.step(what, len(hidden) / rounds)
        throttle.set(read=nbytes / (share * alone))
        words = list(took) if number % 2 else list(took)[::-1]
        now = {word: role.run(f"{word} 0")["seconds"] for word in words}
        alone = now["compute"]
        if abs(now["load"] / now["compute"] - share) <= SLACK:
            hidden.append(1 - (now["both"] - now["compute"]) / now["load"])
            for word, seconds in now.items():
                took[word].append(seconds)
        if len(hidden) == rounds:
            break
    throttle.set()
    if len(hidden) < min(rounds, 5):
        return [skipped(what, "", f"{len(hidden)} rounds of {3 * rounds} were at that share",
                        limit=LEAST, sense=AT_LEAST)]
    note = (f"{size.layers} layers in {size.groups} groups, {size.found} blocks found, "
            f"{size.computed} computed; disk throttled by a control group")
    return [row(what, hidden, "", limit=LEAST, sense=AT_LEAST, note=note),
            *(row(f"{what}: {word}", [1e3 * one for one in seconds], "ms",
                  reference=word != "both") for word, seconds in took.items())]
