# SPDX-License-Identifier: Apache-2.0
"""`kvshm replay --compare` and `--compare-sharing`."""
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from kvshm.eviction.exact import exact_lru
from kvshm.tools.replay.progress import Progress
from kvshm.tools.replay.ratios import ratios
from kvshm.tools.replay.sharing import ROUTINGS, compare_sharing
from kvshm.tools.replay.synthetic import synthetic
from kvshm.tools.replay.trace import Trace
from support.cli import kvshm_cli
from support.traces import recorded

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/replay.schema.json").read_text())
LOAD = ["replay", "--synthetic", "chat", "--requests", 500]


def routed(trace: Trace, routing: str, share: float, engines: int) -> float:
    blocks = trace.blocks_of(share) // engines
    hits = ROUTINGS[routing](trace, "lru", blocks, engines, lambda requests: None)
    return 100 * ratios(trace, hits).block


def test_policies_and_references_at_several_capacities() -> None:
    done = kvshm_cli(*LOAD, "--compare", "--policy", "lru,clock", "--fraction", "0.05,0.2",
                     "--json")
    assert done.code == 0, done.err
    jsonschema.validate(done.json, SCHEMA)
    points = done.json["points"]
    assert [(p["policy"], p["reference"]) for p in points[:5]] == [
        ("lru", False), ("clock", False), ("exact LRU", True), ("ARC", True), ("Belady", True)]
    assert len(points) == 10
    for small, large in zip(points[:5], points[5:], strict=True):
        assert small["policy"] == large["policy"] and small["blocks"] < large["blocks"]
        assert 0 < small["block_hit_ratio"] < large["block_hit_ratio"] < 1
    assert all(p["block_hit_ratio"] <= points[4]["block_hit_ratio"] for p in points[:4])
    text = kvshm_cli(*LOAD, "--compare", "--policy", "lru,clock", "--fraction", "0.05,0.2").out
    head, *rows = text.partition("# block hit ratios")[2].splitlines()[1:]
    assert "(5%)" in head and "(20%)" in head and len(rows) == 5


class Page(HTMLParser):
    """What a page would fetch; and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs
                         if name in ("src", "href", "data", "xlink:href")
                         and not (value or "").startswith("#")]

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.html"
    done = kvshm_cli(*LOAD, "--compare", path, "--policy", "lru,lfu", "--fraction", "0.05,0.2")
    assert done.code == 0, done.err
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert page.fetched == [] and "//" not in re.sub(r"(?s)<!--.*?-->", "", text)
    assert page.tags.count("svg") == 1 and page.tags.count("tr") == 11
    assert {"lru", "lfu", "Belady", "5 %", "20 %"} <= set(page.words)


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    done = kvshm_cli(*LOAD, "--compare", path, "--policy", "lru", "--fraction", "0.1", "-q")
    assert done.code == 0 and done.out == "", done.err
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    for path, said in ((tmp_path / "x.gif", "ends in .png or .html"),
                       (tmp_path / "no" / "x.png", "No such file")):
        done = kvshm_cli(*LOAD, "--compare", path)
        assert done.code == 2 and said in done.err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = kvshm_cli(*LOAD, "--compare", tmp_path / "x.png")
    assert done.code == 2 and "kvshm[plots]" in done.err


@pytest.mark.parametrize("argv, said", [
    (["--policy", "lru,clock"], "--policy: 2 of them: wanted one, or --compare FILE"),
    (["--fraction", "0.1,0.2"], "--blocks or --fraction: 2 of them"),
    (["--compare", "--compare-sharing"], "not allowed with"),
    (["--compare", "--kills", "1"], "--kills: "),
    (["--compare-sharing", "--processes", "2"], "--processes: "),
    (["--compare-sharing", "--blocks", "3", "--policy", "lru"], "3 blocks for 4 engines"),
])
def test_usage(argv: list[str], said: str) -> None:
    done = kvshm_cli(*LOAD, *argv)
    assert done.code == 2 and said in done.err


def test_private_arenas_are_exact_lru_of_their_requests() -> None:
    trace = synthetic("chat", 9, 2000)
    assert trace.sessions is not None
    hashed = [int((x * 2654435761 % 2**32) / 2**32 * 3) for x in trace.sessions.tolist()]
    assert min(np.bincount(hashed)) > 400
    for routing, engine in (("round-robin", np.arange(2000) % 3), ("sticky", np.array(hashed))):
        blocks, exact = trace.blocks_of(0.2) // 3, 0
        for one in range(3):
            mine = trace.select(np.flatnonzero(engine == one))
            exact += int(exact_lru(mine.dense, mine.bounds, blocks).sum())
        assert routed(trace, routing, 0.2, 3) == pytest.approx(100 * exact / trace.accesses, abs=1)


def test_sharing_command() -> None:
    done = kvshm_cli(*LOAD, "--compare-sharing", "--policy", "lru", "--engines", "2,4", "--json")
    assert done.code == 0, done.err
    jsonschema.validate(done.json, SCHEMA)
    found = done.json["comparisons"]
    assert [(c["engines"], c["routing"]) for c in found] == [
        (1, "shared"), (2, "round-robin"), (2, "prefix-aware"), (2, "sticky"),
        (4, "round-robin"), (4, "prefix-aware"), (4, "sticky")]
    by = {(c["engines"], c["routing"]): c["block_hit_ratio"] for c in found}
    assert by[1, "shared"] > by[2, "prefix-aware"] > by[2, "round-robin"] > by[4, "round-robin"]
    assert all(c["blocks"] == found[0]["blocks"] // c["engines"] for c in found)
    text = kvshm_cli(*LOAD, "--compare-sharing", "--policy", "lru", "--engines", "2").out
    assert "one arena that all share" in text and "2 private, prefix-aware" in text


def test_no_sticky_routing_without_sessions() -> None:
    trace = recorded("mooncake_synthetic", requests=300)
    found = compare_sharing(trace, "lru", 2000, [2], Progress(quiet=True))
    assert [c.routing for c in found] == ["shared", "round-robin", "prefix-aware"]


@pytest.mark.parametrize("name, routing, share, engines, expected", [
    ("mooncake_conversation", "round-robin", 0.05, 4, 8.54),
    ("mooncake_conversation", "round-robin", 0.1, 8, 8.30),
    ("mooncake_conversation", "prefix-aware", 0.05, 4, 17.58),
    ("mooncake_synthetic", "round-robin", 0.1, 2, 15.31),
    ("mooncake_synthetic", "prefix-aware", 0.1, 4, 24.18),
])
def test_recorded(name: str, routing: str, share: float, engines: int, expected: float) -> None:
    assert routed(recorded(name), routing, share, engines) == pytest.approx(expected, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("engines, expected", [(4, 81.04), (8, 75.75)])
def test_recorded_sessions(engines: int, expected: float) -> None:
    trace = recorded("claude_code_agentic", tokens_per_block=512)
    assert routed(trace, "sticky", 0.02, engines) == pytest.approx(expected, abs=1)
