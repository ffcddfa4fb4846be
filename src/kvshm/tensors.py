# SPDX-License-Identifier: Apache-2.0
"""Where a row of an engine's paged KV tensors lies in memory. Geometry alone: nothing is copied.

A tensor is anything with torch's data_ptr(), shape, stride(), element_size(), device and
untyped_storage(); torch itself is not imported. Its first dimension counts rows: kernel rows, of
which `rows_per_block` consecutive ones make one of the engine's blocks. All others belong to the
row, in whatever physical order.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

from kvshm.errors import InvalidArgument

MAX_PIECES = 1 << 16


class Piece(NamedTuple):
    """Bytes of a block that lie side by side."""

    storage: int    # number of the allocation, in the order in which the layers name them
    at: int         # in block 0, from the first byte of the allocation
    stride: int     # bytes from one block to the next
    nbytes: int
    layer: int      # index of the layer
    element: int    # its first element, as the layer's own shape counts them within a block
    address: int    # in block 0


class Layout(NamedTuple):
    pieces: list[Piece]     # in the order of the slice
    layers: list[str]
    device: str
    text: str


def layout_of(tensors: Mapping[str, Any], blocks: int, rows_per_block: int = 1) -> Layout:
    """The pieces of all layers, in the order in which a slice holds them: allocation by allocation
    (in the order of the layers), and in each by address. InvalidArgument names the layer."""
    if not tensors:
        raise InvalidArgument("no layers")
    if blocks < 1 or rows_per_block < 1:
        raise InvalidArgument(f"{blocks} blocks of {rows_per_block} rows")
    storages: dict[int, int] = {}
    seen: dict[tuple[Any, ...], int] = {}
    devices: dict[str, str] = {}
    pieces: list[Piece] = []
    told: list[Any] = []
    for index, (name, tensor) in enumerate(tensors.items()):
        view = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()),
                tensor.element_size())
        same = seen.setdefault(view, index)
        if same != index:   # layers that share one tensor
            told.append(same)
            continue
        devices.setdefault(str(tensor.device), name)
        if len(devices) > 1:
            raise InvalidArgument(f"layer {name!r} is on {tensor.device}, others on "
                                  f"{next(iter(devices))}")
        layer = _Layer(name, index, tensor, blocks, rows_per_block)
        number = storages.setdefault(layer.base, len(storages))
        if len(pieces) + layer.count > MAX_PIECES:
            raise InvalidArgument(f"layer {name!r}: a block lies in more than {MAX_PIECES} pieces")
        pieces += layer.pieces(number)
        told.append(layer.told())
    pieces.sort(key=lambda piece: (piece.storage, piece.at))
    (device,) = devices
    return Layout(pieces, list(tensors), device, _text(told, pieces))


class _Dim(NamedTuple):
    stride: int     # bytes
    size: int
    weight: int     # elements of the block, in the layer's own order, from one index to the next
    axis: int       # 0 = the rows of a block, -1 = the blocks


class _Layer:
    """One tensor: its dimensions by stride, checked."""

    def __init__(self, name: str, index: int, tensor: Any, blocks: int, ratio: int) -> None:
        self.name, self.index = name, index
        shape = tuple(int(n) for n in tensor.shape)
        self.item = int(tensor.element_size())
        strides = [int(n) * self.item for n in tensor.stride()]
        self.dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if len(shape) < 2 or 0 in shape:
            raise self.wrong(f"shape {shape}: expected blocks first, and something in them")
        if shape[0] != blocks * ratio:
            raise self.wrong(f"{shape[0]} rows: expected {blocks} blocks of {ratio}")
        self.shape = (ratio, *shape[1:])
        self.stride = strides[0] * ratio
        dims = [_Dim(strides[0] if axis == 0 else strides[axis], size,
                     prod(self.shape[axis + 1:]), axis)
                for axis, size in enumerate(self.shape)]
        dims = [dim for dim in (*dims, _Dim(self.stride, blocks, 0, -1)) if dim.size > 1]
        self.dims = sorted(dims, key=lambda dim: dim.stride)
        self.address = int(tensor.data_ptr())
        storage = tensor.untyped_storage()
        self.base, bound = int(storage.data_ptr()), int(storage.nbytes())
        self._check(bound)
        self.dense, self.outer = self._split()
        self.count = prod(dim.size for dim in self.outer)

    def wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"layer {self.name!r}: {what}")

    def _check(self, bound: int) -> None:
        span = self.item
        for dim in self.dims:
            what = {-1: "blocks", 0: "rows"}.get(dim.axis, f"elements along dimension {dim.axis}")
            if dim.stride <= 0:
                raise self.wrong(f"{what}: stride {dim.stride // self.item}")
            if dim.stride < span:
                raise self.wrong(f"{what} overlap: one every {dim.stride} bytes, while what is "
                                 f"inside reaches over {span}")
            span += dim.stride * (dim.size - 1)
        if not self.address:
            raise self.wrong("it has no memory (address 0)")
        if self.address < self.base or self.address + span > self.base + bound:
            raise self.wrong(f"it reaches over bytes {self.address - self.base} to "
                             f"{self.address - self.base + span} of an allocation of {bound}")

    def _split(self) -> tuple[list[_Dim], list[_Dim]]:
        """What lies side by side in a block, and what repeats it."""
        inside = [dim for dim in self.dims if dim.axis >= 0]
        extent, n = self.item, 0
        while n < len(inside) and inside[n].stride == extent:
            extent *= inside[n].size
            n += 1
        return inside[:n], inside[n:]

    def pieces(self, storage: int) -> Iterator[Piece]:
        nbytes = self.item * prod(dim.size for dim in self.dense)
        for place in product(*(range(dim.size) for dim in self.outer)):
            at = sum(i * dim.stride for i, dim in zip(place, self.outer, strict=True))
            element = sum(i * dim.weight for i, dim in zip(place, self.outer, strict=True))
            yield Piece(storage, self.address - self.base + at, self.stride, nbytes, self.index,
                        element, self.address + at)

    def told(self) -> list[Any]:
        """What says where each element of a piece is, the same in every process."""
        return [self.dtype, self.item, list(self.shape), [dim.axis for dim in self.dense]]


def _text(layers: list[Any], pieces: list[Piece]) -> str:
    """Equal for two tables only if each byte of their slices means the same. Where the tensors lie
    and how many blocks they have is not in it."""
    order = [(piece.layer, piece.element, piece.nbytes) for piece in pieces]
    digest = hashlib.blake2b(json.dumps([layers, order], separators=(",", ":")).encode(),
                             digest_size=16).hexdigest()
    own = [layer for layer in layers if isinstance(layer, list)]
    shapes = {f"{'x'.join(map(str, shape))} {dtype}" for dtype, _, shape, _ in own}
    what = shapes.pop() if len(shapes) == 1 else "mixed"
    return f"{len(own)} layers {what}, {len(pieces)} pieces, {digest}"
