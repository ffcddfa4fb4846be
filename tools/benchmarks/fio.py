# SPDX-License-Identifier: Apache-2.0
"""fio as the measure of a drive: one job on io_uring, with registered buffers and files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ..environments import Absent, need
from .native import BenchError, Facts

LIMIT = 120.0  # seconds, beyond the job's own time


def wanted() -> None:
    try:
        need("fio", {}, {"fio": "fio"})
    except Absent as e:
        raise BenchError(str(e)) from None


def version() -> str:
    got = subprocess.run(["fio", "--version"], capture_output=True, text=True, timeout=30)
    return got.stdout.strip()


def run(path: Path, file_bytes: int, way: str, block: int, depth: int, ms: int) -> Facts:
    """At random places for so long; ms = 0: the whole file once, in order."""
    command = [
        "fio", "--name=bench", f"--filename={path}", f"--size={file_bytes}",
        f"--rw={'rand' if ms else ''}{way}", f"--bs={block}", f"--iodepth={depth}",
        "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1",
        "--norandommap", "--randrepeat=0", "--scramble_buffers=0", "--output-format=json"]
    if ms:
        command += ["--time_based", f"--runtime={ms}ms"]
    try:
        got = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT + ms / 1000,
                             stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BenchError(f"fio: not within {LIMIT:.0f} s") from None
    if got.returncode != 0:
        raise BenchError(f"fio: {(got.stderr or got.stdout).strip()[-300:]}")
    return read(got.stdout, way)


def read(text: str, way: str) -> Facts:
    """What it says, in our names. It may print warnings before the document."""
    job = json.loads(text[text.index("{"):])["jobs"][0]
    moved = job[way]
    if not moved["io_bytes"]:
        raise BenchError("fio: it moved nothing")
    cpu_ns = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e6
    percentile = moved["clat_ns"].get("percentile", {})
    # From being handed over to being back, as a caller sees it.
    handed = moved["slat_ns"]["mean"]
    return {
        "gb_per_second": moved["bw_bytes"] / 1e9,
        "cpu_ns_per_kib": cpu_ns * 1024 / moved["io_bytes"],
        "p50_us": (percentile.get("50.000000", 0) + handed) / 1000,
        "p99_us": (percentile.get("99.000000", 0) + handed) / 1000,
    }
