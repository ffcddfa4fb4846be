# SPDX-License-Identifier: Apache-2.0
"""What goes from the scheduler's process to the workers in a step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

import kvshm

NOWHERE = 1 << 62  # "failed at": nothing failed

Handles = npt.NDArray[Any]  # of kvshm.convert.HANDLE_DTYPE
Rows = npt.NDArray[Any]  # uint32: the engine's block ids


@dataclass(frozen=True)
class ArenaRef:
    """Where the workers attach. uuid: handles mean nothing in another arena of the same name."""

    name: str
    directory: str | None
    uuid: bytes
    block_bytes: int
    identity: kvshm.Identity


@dataclass(frozen=True)
class Piece:
    """Blocks of one group: arena block handles[i] belongs to the engine's block rows[i]."""

    group: int
    handles: Handles
    rows: Rows


@dataclass(frozen=True)
class LoadJob:
    job: int
    request: str
    pieces: tuple[Piece, ...]
    waits: bool  # the step waits for it (a synchronous load)
    lost: bool = False  # the holds are gone: all of it is to be reported as failed


@dataclass(frozen=True)
class SaveJob:
    job: int
    request: str
    piece: Piece


@dataclass
class KvshmMetadata(KVConnectorMetadata):
    arena: ArenaRef | None = None
    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    flush: list[int] = field(default_factory=list)  # saves whose source blocks are given away now
    # Failed synchronous loads that the scheduler knows of, by rank.
    failures_seen: dict[int, int] = field(default_factory=dict)


@dataclass
class Result:
    """Of one job, added up over the ranks."""

    reports: int
    failed_at: int = NOWHERE  # first block of the job that failed, counted over its pieces
    seconds: float = 0.0  # of the slowest rank
    nbytes: int = 0

    def add(self, other: Result) -> Result:
        return Result(self.reports + other.reports, min(self.failed_at, other.failed_at),
                      max(self.seconds, other.seconds), self.nbytes + other.nbytes)


@dataclass
class KvshmWorkerMeta(KVConnectorWorkerMetadata):
    results: dict[int, Result] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)  # synchronous loads, by rank

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, KvshmWorkerMeta)
        merged = dict(self.results)
        for job, result in other.results.items():
            merged[job] = merged[job].add(result) if job in merged else result
        return KvshmWorkerMeta(merged, {**self.failures, **other.failures})
