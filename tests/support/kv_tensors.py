# SPDX-License-Identifier: Apache-2.0
"""KV tensors of an engine, without an engine: torch's in every layout, and plain memory."""
from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def random_bytes(tensor: Any, seed: int) -> None:
    """Every byte of a contiguous tensor."""
    import torch

    flat = tensor.view(-1).view(torch.uint8)
    flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8,
                             generator=torch.Generator().manual_seed(seed)))


def in_order(order: str, *, seed: int = 1, dtype: str = "bfloat16", **sizes: int) -> dict[str, Any]:
    """One allocation of the physical order, as the logical views [B, H, N, C] of its layers."""
    import torch

    base = torch.zeros([sizes[letter] for letter in order], dtype=getattr(torch, dtype))
    random_bytes(base, seed)
    logical = base.permute([order.index(letter) for letter in "LBHNC"])
    return {f"layers.{i}.attn": logical[i] for i in range(sizes["L"])}


def bytes_of(tensor: Any, row: int, ratio: int = 1) -> bytes:
    """Of one block, in its logical order: torch's own indexing."""
    import torch

    block = tensor[row * ratio:(row + 1) * ratio].contiguous()
    return bytes(block.view(-1).view(torch.uint8).numpy())


class Memory:
    """Looks like a tensor of bytes at an address; nothing needs to be there."""

    device = "cpu"
    dtype = "uint8"

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
                 *, base: int | None = None, nbytes: int | None = None, item: int = 1) -> None:
        if strides is None:
            strides, step = (), 1
            for n in reversed(shape):
                strides, step = (step, *strides), step * n
        self.address, self.shape, self._strides, self.item = address, shape, strides, item
        reach = item * (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))
        self._storage = (address if base is None else base, reach if nbytes is None else nbytes)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self.item

    def untyped_storage(self) -> Any:
        base, nbytes = self._storage
        return SimpleNamespace(data_ptr=lambda: base, nbytes=lambda: nbytes)


def of_array(array: Any, *, offset: int = 0, shape: tuple[int, ...] | None = None) -> Memory:
    """The memory of a numpy array (also a read-only one), from a byte of it on."""
    address = array.__array_interface__["data"][0]
    return Memory(address + offset, shape or array.shape, base=address, nbytes=array.nbytes)


def pages(n: int, *, readonly: bool = False) -> mmap.mmap:
    """n pages of memory of their own."""
    return mmap.mmap(-1, n * mmap.PAGESIZE, prot=mmap.PROT_READ if readonly
                     else mmap.PROT_READ | mmap.PROT_WRITE)
