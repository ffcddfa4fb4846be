# SPDX-License-Identifier: Apache-2.0
"""tools/bench mover: its document, and that an engine's calls do not wait for a disk of 10 MB/s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvshm.tools.benchmarks import bench, main, p5_disk
from kvshm.tools.benchmarks.mounts import Mounts
from kvshm.tools.benchmarks.mover import breakeven, calls, layers, overlap
from kvshm.tools.benchmarks.progress import Progress
from kvshm.tools.benchmarks.rows import AT_LEAST, Row, Target

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# At 10 MB/s a look-up's blocks take 50 ms, and what waits to be written 0.4 s.
LOAD = calls.Load(block=64 << 10, blocks=96, queue=64, ms=600)
ANY = 5000  # us: a look-up that waits for a processor takes that on a busy machine, too
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk."""
    with tempfile.TemporaryDirectory(prefix="kvshm-bench-",
                                     dir=p5_disk.default_folder()) as made:
        yield Path(made)


def small() -> bench.Bench:
    return bench.Bench("", Mounts({}), bench.QUICK, Progress(["M"]))


def measured(rows: list[Row]) -> dict[str, Row]:
    if all(one.value is None for one in rows):
        pytest.skip(rows[0].note)
    return {one.what: one for one in rows}


def test_calls_do_not_wait_for_a_slow_disk(folder: Path) -> None:
    rows = measured(calls.measure(small(), folder, LOAD, 3))
    for call in calls.CALLS:
        ratio, slow = rows[f"{call}: p99, of the same unthrottled"], rows[
            f"{call}: p99, disk at 10 MB/s"]
        assert ratio.limit == 2 and ratio.samples == 3
        assert ratio.holds or slow.value < ANY, rows
    waiting = rows["blocks that wait to be written, most"]
    assert waiting.holds and waiting.value > LOAD.queue / 2, "the disk was not too slow for it"
    assert rows["private memory added in all rounds"].holds


def test_a_call_that_waits_for_the_disk_is_seen(folder: Path) -> None:
    """The control: an engine that waits for its loads in every step."""
    load = calls.Load(block=LOAD.block, blocks=LOAD.blocks, queue=LOAD.queue, ms=600, waits=True)
    rows = measured(calls.measure(small(), folder, load, 1))
    assert rows["match: p99, disk at 10 MB/s"].value > 2 * ANY
    assert rows["match: p99, of the same unthrottled"].holds is False


def test_what_the_pipeline_hides(folder: Path) -> None:
    """Of a model that computes next to nothing: that it runs, not how much."""
    pytest.importorskip("torch")
    size = layers.Size(tiny=True, layers=4, groups=4, found=12, computed=6)
    rows = layers.measure(small(), folder, size, 1)
    gates = [one for one in rows if one.limit is not None]
    if rows[0].note.startswith("not measured: the tier cannot be made slow"):
        pytest.skip(rows[0].note)
    assert len(gates) in (1, len(layers.SHARES))
    assert all(one.limit == 0.8 and one.sense == AT_LEAST for one in gates)
    assert all(one.value is not None or "rounds" in one.note for one in gates), gates


def test_the_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "mover", "--json", "--quick", "--rounds",
         "1", "--only", "M1", "--tokens-per-second", "1", "--token-bytes", str(MIB), "--native",
         "none", "--root", str(ROOT)],
        capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["kind"] == "bench mover" and list(document["targets"]) == ["M1"]
    assert set(document) >= {"overlap", "layerwise_hidden", "gather_min_ratio"}
    assert document["layerwise_hidden"] is None
    rows = {one["what"]: one for one in document["targets"]["M1"]["detail"]}
    for what in ("G2 to G1 by a copy, beside computing", "the same by plain memcpy"):
        assert rows[what]["value"] is None or rows[what]["value"] > 0
    for what in (breakeven.MEMORY, breakeven.DISK):
        found = rows[what]
        assert found["unit"] == "tokens"
        # A model of a token a second, and less than a block a token: the first block is worth it.
        assert found["value"] == 2 or found["note"].startswith("not measured: "), found
    assert not [one for one in os.listdir(p5_disk.default_folder())
                if one.startswith(f"kvshm-bench-{os.getpid()}")]


def test_of_several_figures_the_worst_is_the_headline() -> None:
    def gates(values: tuple[float | None, ...]) -> tuple[Row, ...]:
        return tuple(Row(str(i), value, "", limit=0.8, sense=AT_LEAST)
                     for i, value in enumerate(values))
    targets = [Target("M1", "", (Row(overlap.UP, 1.1, "x", limit=1.15), Row("other", 9, "x"))),
               Target("M2", "", gates((0.9, 0.7, None))), Target("gather", "", gates((0.8, 0.95)))]
    assert main.headline(targets) == {
        "overlap": 1.1, "layerwise_hidden": 0.7, "gather_min_ratio": 0.8}
    assert set(main.headline(targets[:1]).values()) == {1.1, None}


def test_the_break_even_length() -> None:
    """100 us before the first byte and 2 GB/s: a token of 100,000 bytes takes 50 us to come."""
    block = 1_000_000
    disk = breakeven.Times(block, 600e-6, 101 * block, 600e-6 + 100 * 500e-6)
    assert disk.begin == pytest.approx(100e-6) and 1 / disk.each == pytest.approx(2e9)
    slow, fast = breakeven.Cost(10_000, 100_000), breakeven.Cost(19_900, 100_000)
    assert breakeven.tokens([disk], slow) == 10, "a block, the least that can be loaded"
    assert breakeven.tokens([disk], fast) == pytest.approx(100e-6 / (1 / 19_900 - 50e-6))
    assert breakeven.tokens([disk], breakeven.Cost(20_001, 100_000)) is None
    assert breakeven.tokens([disk, disk], breakeven.Cost(10_001, 100_000)) is None
    assert breakeven.tokens([disk, disk], breakeven.Cost(9_900, 100_000)) == pytest.approx(
        200e-6 / (1 / 9_900 - 100e-6))
    never = breakeven.row("", [disk], breakeven.Cost(20_001, 100_000))
    assert never.value is None and never.note.startswith("never: ")
