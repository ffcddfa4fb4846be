# SPDX-License-Identifier: Apache-2.0
"""A model without weights: the KV of a token is a number that the whole prefix goes into, read from
the KV cache as attention reads it. A wrong byte anywhere changes all that comes after."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MASK = (1 << 64) - 1
VOCABULARY = 1000
HEADS = 2


def mix(x: int) -> int:
    """64 bits in, 64 bits out, each depending on all."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


class Tensor:
    """A numpy array with the methods of a torch tensor that kvshm asks."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = str(array.dtype)
        self.device = "cpu"

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self, dim: int | None = None) -> Any:
        all_of_them = tuple(s // self.array.itemsize for s in self.array.strides)
        return all_of_them if dim is None else all_of_them[dim]

    def element_size(self) -> int:
        return self.array.itemsize

    def storage_offset(self) -> int:
        return (self.array.ctypes.data - self._base().ctypes.data) // self.array.itemsize

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def numel(self) -> int:
        return self.array.size

    def dim(self) -> int:
        return self.array.ndim

    def untyped_storage(self) -> Any:
        return Storage(self._base())

    def _base(self) -> np.ndarray:
        array = self.array
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array


class Storage:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def nbytes(self) -> int:
        return self._array.nbytes


class Lane(NamedTuple):
    """One number a token: of a rank, in a layer of a group, at a head."""

    rank: int
    group: int
    layer: int
    head: int


class Model:
    """windows: by KV cache group, the tokens that its attention sees; None = all."""

    def __init__(self, windows: Sequence[int | None] = (None,), layers: int = 2, ranks: int = 1,
                 weights: str = "w") -> None:
        self.windows, self.layers, self.ranks = tuple(windows), layers, ranks
        self.lanes = [Lane(r, g, n, h) for r in range(ranks) for g in range(len(windows))
                      for n in range(layers) for h in range(HEADS)]
        self.seed = int.from_bytes(weights.encode()[:7], "little")
        self._known: dict[tuple[int, ...], int] = {}

    def layer_name(self, group: int, layer: int) -> str:
        return f"g{group}.layers.{layer}"

    def compute(self, before: np.ndarray, tokens: Sequence[int], first: int,
                adapter: int = 0) -> tuple[np.ndarray, int]:
        """before: (lanes, first) values of the tokens that came first. Returns those of `tokens`,
        (lanes, len(tokens)), and what is sampled after the last of them."""
        n = first + len(tokens)
        values = np.zeros((len(self.lanes), n), np.uint64)
        values[:, :first] = before
        weight = np.arange(first, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        sums = []
        for row in values[:, :first] * weight:
            sums.append([0, *np.cumsum(row, dtype=np.uint64).tolist()])
        for position, token in enumerate(tokens, first):
            seen = self._seen(sums, position)
            for i in range(len(self.lanes)):
                value = mix(seen ^ mix(token * 64 + i) ^ self.seed ^ adapter << 56)
                values[i, position] = value
                sums[i].append((sums[i][-1] + value * (2 * position + 1)) & MASK)
        return values[:, first:], mix(self._seen(sums, n)) % VOCABULARY

    def _seen(self, sums: list[list[int]], position: int) -> int:
        seen = position
        for lane, own in zip(self.lanes, sums):
            window = self.windows[lane.group]
            start = 0 if window is None else max(0, position - window + 1)
            seen = mix(seen ^ (own[position] - own[start]) & MASK)
        return seen

    def values(self, tokens: Sequence[int], adapter: int = 0) -> np.ndarray:
        """(lanes, tokens): the truth."""
        return self.compute(np.zeros((len(self.lanes), 0), np.uint64), tokens, 0, adapter)[0]

    def generate(self, prompt: Sequence[int], n: int, adapter: int = 0) -> list[int]:
        """n tokens, by a run without any cache between requests."""
        values, token = self.compute(np.zeros((len(self.lanes), 0), np.uint64), prompt, 0, adapter)
        out = [token]
        while len(out) < n:
            new, token = self.compute(values, out[-1:], values.shape[1], adapter)
            values = np.concatenate([values, new], axis=1)
            out.append(token)
        return out


class Cache:
    """The KV tensors of all ranks: by rank and layer name, (blocks, heads, tokens, 1) uint64."""

    def __init__(self, model: Model, blocks: int, block_tokens: int) -> None:
        self.model, self.block_tokens = model, block_tokens
        shape = (blocks, HEADS, block_tokens, 1)
        self.arrays = [{model.layer_name(g, n): np.zeros(shape, np.uint64)
                        for g in range(len(model.windows)) for n in range(model.layers)}
                       for _ in range(model.ranks)]

    def tensors(self, rank: int) -> dict[str, Tensor]:
        return {name: Tensor(array) for name, array in self.arrays[rank].items()}

    def _lane(self, lane: Lane) -> np.ndarray:
        layer = self.model.layer_name(lane.group, lane.layer)
        return self.arrays[lane.rank][layer][:, lane.head, :, 0]

    def read(self, tables: Sequence[Sequence[int]], n: int) -> np.ndarray:
        """(lanes, n) values of a request's first n tokens, by its block tables."""
        blocks = -(-n // self.block_tokens)
        out = np.zeros((len(self.model.lanes), n), np.uint64)
        for i, lane in enumerate(self.model.lanes):
            out[i] = self._lane(lane)[list(tables[lane.group][:blocks])].reshape(-1)[:n]
        return out

    def write(self, tables: Sequence[Sequence[int]], first: int, values: np.ndarray) -> None:
        positions = np.arange(first, first + values.shape[1])
        for i, lane in enumerate(self.model.lanes):
            rows = np.asarray(tables[lane.group])[positions // self.block_tokens]
            self._lane(lane)[rows, positions % self.block_tokens] = values[i]
