# SPDX-License-Identifier: Apache-2.0
"""The processes that move and compute, spoken to as the native ones are (cpp/bench/bench.hpp): one
line of JSON when ready, then one for each order, a word and a number."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Facts = dict[str, Any]
Order = Callable[[float], Facts]


def serve(orders: dict[str, Order], facts: Facts) -> None:
    say({"ready": 1, **facts})
    for line in sys.stdin:
        word, number = line.split()
        say(orders[word](float(number)))


def say(answer: Facts) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    kind, *given = sys.argv[1:]
    args = dict(one.split("=", 1) for one in given)
    if kind == "layers":
        from .layers_side import layers as role
    elif kind == "calls":
        from .calls_side import calls as role
    else:
        from .overlap_side import SIDES

        role = SIDES[kind]
    role(args)


if __name__ == "__main__":
    main()
