# SPDX-License-Identifier: Apache-2.0
"""How engines lay out their KV: one small type for all of it, and tensors made by it.

A cache has dimensions: layers, blocks, K and V, heads, tokens of a block, elements of a head. What
differs from engine to engine is their physical order, and which of them are tensors of their own.
"""
from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvshm.errors import InvalidArgument
from kvshm.tensors import Layout as Geometry, layout_of

ORDERS = ("layers", "contiguous", "blocks")
KV = ("joined", "split", "latent")
HEADS_AT = ("token", "block", "outermost")
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
        "uint8": 1, "int8": 1}


@dataclass(frozen=True)
class Layout:
    """order: "layers", a tensor each; "contiguous", all in one, layers outside; "blocks", all in
    one, blocks outermost. kv: "joined", K and V of a block in one tensor; "split", in two;
    "latent", one vector a token (MLA: heads=1). heads_at: "token", inside (NHD); "block", outside
    of a block's tokens (HND); "outermost", outside of the blocks."""

    layers: int
    tokens: int
    heads: int
    dim: int
    dtype: str = "bfloat16"
    order: str = "layers"
    kv: str = "joined"
    heads_at: str = "token"

    def __post_init__(self) -> None:
        for name in ("layers", "tokens", "heads", "dim"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidArgument(f"{name}: expected a number, got {getattr(self, name)!r}")
        for name, known in (("order", ORDERS), ("kv", KV), ("heads_at", HEADS_AT),
                            ("dtype", tuple(ITEM))):
            if getattr(self, name) not in known:
                raise InvalidArgument(
                    f"{name}: expected one of {', '.join(known)}; got {getattr(self, name)!r}")
        if self.kv == "latent" and self.heads != 1:
            raise InvalidArgument(f"kv='latent' has one head, got {self.heads}")
        if self.order == "blocks" and (self.heads_at == "outermost" or self.kv == "split"):
            raise InvalidArgument("order='blocks': nothing lies outside of the blocks, so neither "
                                  "heads_at='outermost' nor kv='split'")

    @property
    def bytes_per_block(self) -> int:
        sides = 1 if self.kv == "latent" else 2
        return self.layers * sides * self.tokens * self.heads * self.dim * ITEM[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        return self.bytes_per_block // self.tokens

    @cached_property
    def text(self) -> str:
        """What Pages of such tensors have as layout_text: it belongs into Identity(layout=...)."""
        return self._geometry().text

    @property
    def pieces(self) -> tuple[int, int]:
        """In how many places a block lies, and the bytes of one."""
        nbytes = self._geometry().pieces[0].nbytes
        if self.order == "blocks":
            return 1, self.bytes_per_block
        return self.bytes_per_block // nbytes, nbytes

    def _geometry(self) -> Geometry:
        return layout_of({name: _Shape(view, self.dtype, size)
                          for name, view, size in self._views(2)}, 2)

    def allocate(self, blocks: int, device: Any = "cpu") -> dict[str, Any]:
        """The tensors, zeroed: layer name to view, blocks first, as paged.runs_of takes them. On
        the CPU in huge pages where the kernel has them."""
        import torch

        if blocks < 1:
            raise InvalidArgument(f"{blocks} blocks")
        dtype = getattr(torch, self.dtype)
        rooms: dict[int, Any] = {}
        out = {}
        for name, view, size in self._views(blocks):
            if view.room not in rooms:
                rooms[view.room] = _room(torch, size, dtype, torch.device(device))
            out[name] = rooms[view.room].as_strided(view.shape, view.strides, view.offset)
        return out

    def _letters(self) -> str:
        """The physical order: S is K and V."""
        inner = "HNC" if self.heads_at == "block" else "NC" if self.heads_at == "outermost" else (
            "NHC")
        inner = "S" * (self.kv == "joined") + inner
        if self.order == "blocks":
            return "BL" + inner
        return "S" * (self.kv == "split") + "L" + "H" * (self.heads_at == "outermost") + "B" + inner

    def _views(self, blocks: int) -> Iterator[tuple[str, _View, int]]:
        """Each tensor, and the elements of the allocation that it lies in."""
        size = {"L": self.layers, "B": blocks, "S": 2, "H": self.heads, "N": self.tokens,
                "C": self.dim}
        letters = self._letters()
        own = "".join(c for c in letters if c == "S" and self.kv == "split"
                      or c == "L" and self.order == "layers")
        letters = letters[len(own):]
        step = {c: prod(size[d] for d in letters[i + 1:]) for i, c in enumerate(letters)}
        room = prod(size[c] for c in letters)
        logical = "B" + "S" * (self.kv == "joined") + "NHC"
        sides = ("", ) if self.kv != "split" else (".k", ".v")
        for layer in range(self.layers):
            for number, side in enumerate(sides):
                at = number * (self.layers if "L" in own else 1) + (layer if "L" in own else 0)
                yield f"layers.{layer}{side}", _View(
                    at, 0 if "L" in own else layer * step["L"], tuple(size[c] for c in logical),
                    tuple(step[c] for c in logical)), room


class _View(NamedTuple):
    room: int   # number of the allocation
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Shape:
    """Such a tensor without memory: geometry wants addresses, which need not be there."""

    device = "cpu"

    def __init__(self, view: _View, dtype: str, size: int) -> None:
        self.shape, self._strides, self.dtype, self._item = (view.shape, view.strides, dtype,
                                                             ITEM[dtype])
        self._nbytes = size * self._item
        self._base = (view.room + 1) << 48
        self._at = self._base + view.offset * self._item

    def data_ptr(self) -> int:
        return self._at

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self._item

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self._base, nbytes=lambda: self._nbytes)


def _room(torch: Any, size: int, dtype: Any, device: Any) -> Any:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    nbytes = size * dtype.itemsize
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel without them
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
