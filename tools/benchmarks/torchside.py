# SPDX-License-Identifier: Apache-2.0
"""What torch's own indexing takes to gather rows of an engine's tensors: a role for gather.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[], float]  # GB in a second of this thread's processor time


def gather(args: dict[str, str]) -> dict[str, Step]:
    """Into tensors that hold the chosen rows side by side, each in the order of its memory: the
    layout stays, nothing is transposed."""
    import torch

    from kvshm.device import Layout

    torch.set_num_threads(1)
    blocks = int(args.pop("blocks"))
    sizes: dict[str, Any] = {k: int(v) if v.isdigit() else v for k, v in args.items()}
    layout = Layout(**sizes)
    n = blocks + blocks // 2
    order = torch.from_numpy(np.random.default_rng(7).permutation(n)[:blocks].copy())
    views: list[tuple[Any, int, Any]] = []  # a tensor by its strides, which dimension counts rows
    for tensor in layout.allocate(n).values():
        by_stride = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
        view = tensor.permute(by_stride).view(torch.uint8) if tensor.element_size() == 1 else (
            tensor.permute(by_stride))
        at = by_stride.index(0)
        view.copy_(torch.zeros(1, dtype=view.dtype))
        shape = list(view.shape)
        shape[at] = blocks
        views.append((view, at, torch.zeros(shape, dtype=view.dtype)))

    def timed(copy: Callable[[], None]) -> Step:
        def step() -> float:
            start = time.thread_time_ns()
            copy()
            return blocks * layout.bytes_per_block / (time.thread_time_ns() - start)
        return step

    def index_select() -> None:
        for view, at, out in views:
            torch.index_select(view, at, order, out=out)

    def index_copy() -> None:
        for view, at, out in views:
            view.index_copy_(at, order, out)

    rows = order.tolist()

    def copy() -> None:
        for view, at, out in views:
            for i, block in enumerate(rows):
                out.select(at, i).copy_(view.select(at, block))

    return {"index_select": timed(index_select), "index_copy_": timed(index_copy),
            "copy_": timed(copy)}
