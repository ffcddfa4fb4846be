# SPDX-License-Identifier: Apache-2.0
"""P5: blocks down to the tier and up from it, with their checksums, beside fio and beside
LMCache's local disk; and the records of a file, read back after a reboot."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from ..environments import Absent
from . import fio
from .bench import Bench
from .native import BenchError, Facts, Role
from .peers.measure import Asked, prepared
from .rounds import interleave, samples
from .rows import AT_LEAST, Row, row, skipped

TITLE = "NVMe: the tier with its checksums, of fio"
SIZES = {"512 KiB": 512 << 10, "2 MiB": 2 << 20}
RUN = 16  # blocks of a prefix; two prefixes are loaded at a time
# The tier's own: 8 MiB of demand loads in flight, 16 stores.
DEPTHS = {"read": {"512 KiB": 16, "2 MiB": 4}, "write": {"512 KiB": 16, "2 MiB": 16}}
LEAST_SHARE, MOST_CPU = 0.95, 1.3
MEMORY = 512 << 20  # of blocks that transfers go through: more than caches, less than the file
SPARE = 1 << 30
RESAMPLES, SEED = 2000, 5
SLOT, RECORD = 4096, 64
FILL_MS = 240_000  # at most: what is stored by then is what is read back
READ_BACK = 0.999  # of the records, or it is not a rebuild that was measured
PEER, PEER_SIZE = "lmcache-disk", "2 MiB"


@dataclass(frozen=True)
class Disk:
    folder: Path
    file_bytes: int
    rounds: int
    ms: int
    slots: int
    peers: bool = True


def measure(bench: Bench, disk: Disk) -> list[Row]:
    rows: list[Row] = []
    others: list[Row] = []
    for size, block in SIZES.items():
        with ExitStack() as stack:
            files = 3 if disk.peers and size == PEER_SIZE else 2
            folder = scratch(stack, disk.folder, files * disk.file_bytes)
            beside = _made(folder / "fio", disk.file_bytes)
            bench.progress.step(f"filling a tier, {size}", 0)
            role = bench.role(
                stack, "disk", name=bench.arena(), file=folder / "tier",
                bytes=disk.file_bytes, block=block, run=RUN,
                memory=min(MEMORY, disk.file_bytes // 4))
            _ = role.facts
            fio.run(beside, disk.file_bytes, "write", 2 << 20, 8, 0)  # every byte once
            for way, depths in DEPTHS.items():
                rows += _both(bench, disk, role, beside, way, size, depths[size])
                if way == "read":
                    rows += _one(bench, disk, role, beside, size)
                    if disk.peers and size == PEER_SIZE:
                        others = _peer(bench, disk, role, folder)
    return rows + others + _rebuild(bench, disk)


def ratios(rows: list[Row]) -> dict[str, float | None]:
    """By the names that the JSON document has: read_512KiB, ..."""
    return {f"{way}_{size.replace(' ', '')}": next(
        (r.value for r in rows if r.what == _share(way, size)), None)
        for way in DEPTHS for size in SIZES}


def _share(way: str, size: str) -> str:
    return f"{way} of {size}, of fio"


def _both(bench: Bench, disk: Disk, role: Role, path: Path, way: str, size: str, depth: int
          ) -> list[Row]:
    block = SIZES[size]
    candidates: dict[str, Callable[[], Facts]] = {
        "kvshm": partial(role.run, f"{way} {disk.ms}"),
        "fio": partial(fio.run, path, disk.file_bytes, way, block, depth, disk.ms)}
    got = interleave(candidates, disk.rounds, bench.progress, f"{way} {size}")
    hashes = [role.run(f"hash {max(50, disk.ms // 5)}") for _ in range(5)]
    rate = {name: samples(facts, "gb_per_second") for name, facts in got.items()}
    cpu = {name: samples(facts, "cpu_ns_per_kib") for name, facts in got.items()}
    hashing = median(samples(hashes, "cpu_ns_per_kib"))
    share = [a / b for a, b in zip(rate["kvshm"], rate["fio"], strict=True)]
    work = [a / (b + hashing) for a, b in zip(cpu["kvshm"], cpu["fio"], strict=True)]
    of = f"{way} of {size}"
    return [
        row(_share(way, size), share, "x", limit=LEAST_SHARE, sense=AT_LEAST,
            interval=interval(share), note=f"depth {depth}, O_DIRECT, {role.facts['engine']}"),
        row(f"{of}: CPU, of fio's and the checksum's", work, "x", limit=MOST_CPU),
        row(f"{of}: kvshm", rate["kvshm"], "GB/s"),
        row(f"{of}: fio", rate["fio"], "GB/s", reference=True),
        row(f"{of}: kvshm, CPU", cpu["kvshm"], "ns/KiB"),
        row(f"{of}: fio, CPU", cpu["fio"], "ns/KiB", reference=True),
        row(f"{of}: the checksum alone, CPU", samples(hashes, "cpu_ns_per_kib"), "ns/KiB",
            reference=True),
    ]


def _one(bench: Bench, disk: Disk, role: Role, path: Path, size: str) -> list[Row]:
    """A single demand load, and nothing beside it."""
    candidates: dict[str, Callable[[], Facts]] = {
        "kvshm, with its checksum": partial(role.run, f"one {disk.ms}"),
        "fio, depth 1": partial(fio.run, path, disk.file_bytes, "read", SIZES[size], 1, disk.ms)}
    got = interleave(candidates, max(3, disk.rounds // 3), bench.progress, f"one load of {size}")
    return [row(f"one load of {size}, {q}: {name}", samples(facts, f"{q}_us"), "us",
                reference=name.startswith("fio"))
            for q in ("p50", "p99") for name, facts in got.items()]


# What is asked of both, as rows have it: the figure, its unit, how it is called.
BESIDE = {"read": (("gb_per_second", "GB/s", "get"),),
          "one": (("p50_us", "us", "one get, p50"), ("p99_us", "us", "one get, p99")),
          "write": (("gb_per_second", "GB/s", "put"),)}
OURS, THEIRS = "kvshm", "its local disk"


def _peer(bench: Bench, disk: Disk, role: Role, folder: Path) -> list[Row]:
    """The same words to both, what is stored last: then the blocks that are read are others. What
    cannot be measured says why."""
    rows: list[Row] = []
    with ExitStack() as stack:
        asked, absent, version = None, "", ""
        try:
            python, peer = prepared(PEER)
            asked = stack.enter_context(Asked(
                peer, python, [str(folder / "lmcache"), str(disk.file_bytes),
                               str(SIZES[PEER_SIZE]), str(RUN),
                               str(min(MEMORY, disk.file_bytes // 4))], folder / "lmcache.log"))
            bench.progress.step("filling LMCache's local disk", 0)
            version = asked.start().get("version", "")
        except Absent as e:
            absent = str(e)
        for order, figures in BESIDE.items():
            candidates = {OURS: partial(role.run, f"{order} {disk.ms}")}
            if asked and not asked.reason:
                candidates[THEIRS] = partial(asked.run, f"{order} {disk.ms}")
            got = interleave(candidates, max(3, disk.rounds // 2), bench.progress,
                             f"{order} beside LMCache")
            why = asked.reason if asked else absent
            for field, unit, what in figures:
                name = f"{what} of {PEER_SIZE} beside LMCache"
                rows.append(row(f"{name}: {OURS}", samples(got[OURS], field), unit))
                rows.append(
                    skipped(f"{name}: {THEIRS}", unit, why, reference=True) if why else
                    row(f"{name}: {THEIRS}", samples(got[THEIRS], field), unit, reference=True,
                        note=f"lmcache {version}, O_DIRECT, no checksums"))
    return rows


def _rebuild(bench: Bench, disk: Disk) -> list[Row]:
    """A reboot takes the arena and the image of the slots; the file stays. From the opening of the
    tier until it serves."""
    bytes_ = disk.slots * (SLOT + RECORD) + (1 << 20)
    with ExitStack() as stack:
        folder = scratch(stack, disk.folder, bytes_)
        tier = {"file": folder / "tier", "bytes": bytes_, "block": SLOT, "run": RUN,
                "memory": min(MEMORY, bytes_ // 4)}
        bench.progress.step(f"filling {disk.slots:,} slots of 4 KiB", 0)
        stored = _opened(bench, tier, fill=1, fill_ms=FILL_MS)["slots_ready"]
        times, back = [], stored
        for number in range(max(3, disk.rounds // 3)):
            bench.progress.step("reading records back", number / disk.rounds)
            facts = _opened(bench, tier, fill=0)
            slots, back = facts["slots"], facts["slots_ready"]
            if not READ_BACK * stored <= back <= stored:
                raise BenchError(f"{back:,} blocks of {stored:,} are there after a rebuild")
            times.append(facts["rebuild_ms"] * 1e6 / slots)
    return [row("rebuild after a reboot, a million slots of 4 KiB", times, "ms", blocks=slots,
                note=f"measured with {slots:,} slots, {stored:,} blocks stored, {back:,} back")]


def _opened(bench: Bench, tier: dict[str, object], **how: object) -> Facts:
    """By a process that then removes the arena, with its image."""
    with ExitStack() as stack:
        return bench.role(stack, "disk", name=bench.arena(), **tier, **how).facts


def interval(values: list[float]) -> tuple[float, float]:
    """95 %, of the median, by bootstrap."""
    chance = random.Random(SEED)
    found = sorted(median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return found[RESAMPLES * 25 // 1000], found[RESAMPLES * 975 // 1000 - 1]


# ---- the file ------------------------------------------------------------------------------------


def default_folder() -> Path:
    """Where temporary files go, unless that is memory."""
    return next((Path(one) for one in (tempfile.gettempdir(), "/var/tmp", os.getcwd())
                 if os.path.isdir(one) and file_system(Path(one)) != "tmpfs"), Path("/var/tmp"))


def file_system(folder: Path) -> str:
    """Its type, of the mount that the folder lies on."""
    best, kind = "", ""
    where = os.path.realpath(folder)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind


def scratch(stack: ExitStack, parent: Path, nbytes: int) -> Path:
    """A folder of files with so many bytes together, on a disk."""
    if not parent.is_dir():
        raise BenchError(f"{parent}: no such folder (--dir)")
    if file_system(parent) == "tmpfs":
        raise BenchError(f"{parent} is memory, not a disk (--dir)")
    at = os.statvfs(parent)
    free, wanted = at.f_bavail * at.f_frsize, nbytes + SPARE
    if free < wanted:
        raise BenchError(f"{parent}: {free >> 20} MiB free, {wanted >> 20} MiB wanted (--dir)")
    return Path(stack.enter_context(
        tempfile.TemporaryDirectory(prefix="kvshm-bench-", dir=parent)))


def _made(path: Path, nbytes: int) -> Path:
    with open(path, "wb") as made:
        os.posix_fallocate(made.fileno(), 0, nbytes)
    return path
