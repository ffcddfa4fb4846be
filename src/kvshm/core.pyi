# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from _typeshed import HasFileno

from kvshm.attach import Attachment
from kvshm.fill import Fill
from kvshm.index.identity import Identity
from kvshm.lease import Lease
from kvshm.objects import Object, ObjectFill
from kvshm.records import (
    ArenaInfo,
    BlockInfo,
    Broken,
    DeviceInfo,
    DeviceRange,
    Handle,
    ProcessInfo,
    ReapReport,
    Stats,
)

_Keys = Any  # (n, 16) uint8, bytes, or a sequence of 16-byte strings

class Arena(Attachment):
    @classmethod
    def open(
        cls,
        name: str = "auto",
        *,
        size: int | str = 0,
        block_bytes: int | str = 0,
        identity: Identity | None = None,
        dir: str | None = None,
        blocks: int = 0,
        label: str | None = None,
        group: str | None = None,
        pin: str = "auto",
        huge: str = "auto",
        numa: int | str = "auto",
        helper: bool = True,
        reap_interval: float = 0.5,
        quota: int = 0,
        timeout: float = 10.0,
    ) -> Self: ...
    @classmethod
    def create(cls, name: str = "auto", **options: Any) -> Self: ...
    @classmethod
    def attach(cls, name: str = "auto", **options: Any) -> Self: ...
    def match(self, keys: _Keys, *, touch: bool = True, tag: str | int = "") -> Lease: ...
    def match_scattered(self, keys: _Keys, *, touch: bool = True, tag: str | int = "") -> Lease: ...
    def scan(self, keys: _Keys, *, touch: bool = False, tag: str | int = "") -> Lease: ...
    def presence(self, keys: _Keys) -> npt.NDArray[np.uint8]: ...
    def pending(self, key: Any) -> Handle | None: ...
    def upgrade(
        self, handle: tuple[int, int], *, touch: bool = True, tag: str | int = ""
    ) -> Lease | None: ...
    def pin(
        self, handles: Lease | Handle | Iterable[tuple[int, int]], *, tag: str | int = ""
    ) -> Lease | None: ...
    def wait(self, handle: tuple[int, int], timeout: float) -> bool: ...
    def cancel_waits(self, on: bool = True) -> None: ...
    def allocate(
        self,
        n: int,
        keys: _Keys | None = None,
        after: Lease | tuple[int, int] | None = None,
        *,
        parts: int = 1,
        announce: bool = True,
        timeout: float = 0.0,
        no_cache: bool = False,
        priority: int | None = None,
        chained: bool = True,
        evict: bool = True,
        tenant: int = 0,
    ) -> Fill: ...
    def join(self, handles: Handle | Iterable[tuple[int, int]]) -> Fill: ...
    def set_no_cache(self, handle: tuple[int, int], on: bool = True) -> None: ...
    def set_priority(self, handle: tuple[int, int], priority: int) -> None: ...
    def create_object(
        self,
        key: Any,
        nbytes: int | str,
        *,
        timeout: float = 0.0,
        no_cache: bool = False,
        priority: int | None = None,
        evict: bool = True,
        tenant: int = 0,
    ) -> ObjectFill | None: ...
    def get_object(self, key: Any) -> Object | None: ...
    def put_object(self, key: Any, data: Any, **options: Any) -> bool: ...
    def register_device(
        self,
        backend: Any = "cuda",
        *,
        mode: str = "auto",
        piece: int | str = "1GiB",
        drain: float = 2.0,
        device: int | None = None,
        timeout: float = 60.0,
    ) -> DeviceInfo: ...
    def wait_device(self, timeout: float) -> bool: ...
    def unregister_device(self, *, timeout: float = 60.0) -> None: ...
    def device(self) -> DeviceInfo: ...
    def device_ranges(self) -> list[DeviceRange]: ...
    def guard_ring(self, ring: int | HasFileno, index: int | None = None) -> None: ...
    def evict(self, keys: _Keys) -> int: ...
    def clear(self) -> int: ...
    def reset_inactive(self) -> None: ...
    @property
    def epoch(self) -> int: ...
    def bump_epoch(self) -> int: ...
    def reap(self) -> ReapReport: ...
    def tick(self) -> None: ...
    def stats(self, *, own: bool = False) -> Stats: ...
    def info(self) -> ArenaInfo: ...
    def block(self, block_id: int) -> BlockInfo: ...
    def processes(self) -> list[ProcessInfo]: ...
    def is_valid(self) -> list[Broken]: ...
