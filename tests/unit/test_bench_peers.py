# SPDX-License-Identifier: Apache-2.0
"""tools/bench peers: the form of its tables, kvshm's own rows, and that what is missing says why.
The peers themselves are too large to be installed for this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from kvshm.tools import environments
from kvshm.tools.benchmarks.peers import catalog, driver, measure, table
from kvshm.tools.benchmarks.peers.catalog import KVSHM, PEERS, SOURCES, Peer
from kvshm.tools.benchmarks.peers.measure import Cell, Result, Scale
from kvshm.tools.benchmarks.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
SCALE = Scale(prompts=((100, 2),), rounds=2, round_ms=1)

SCHEMA = {
    "type": "object",
    "required": ["schema", "machine", "options", "peers", "rows", "aims"],
    "properties": {
        "schema": {"const": 1},
        "kind": {"const": "bench peers"},
        "machine": {"type": "object", "required": ["cpu", "kernel", "load", "commit"]},
        "peers": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["title", "shared", "version", "pins", "installed", "absent", "notes"],
            },
        },
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["peer", "source", "tokens", "block", "value", "spread", "samples",
                             "ns_per_token", "reason"],
                "properties": {"source": {"enum": list(SOURCES)}},
            },
        },
    },
}

# A peer that finds its own blocks, all or all but one.
TOY = """
import sys
sys.path.insert(0, {here!r})
import driver
out = driver.protect_stdout()
print("the peer's own output")
block = int(sys.argv[1])
asked = {{s.tokens: driver.requests(s, block) for s in driver.shapes(sys.argv[2])}}
look = lambda given: (max(len(given) - {less}, 0), None)
blocks = lambda one: one.hashes
driver.serve(out, {{"version": "toy 1"}}, asked,
             {{name: (blocks, look, lambda held: None) for name in ("keys", "hashes", "tokens")}})
"""


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvshm.tools.benchmarks", "peers", "--quick", "--root", str(ROOT),
         *args], capture_output=True, text=True, timeout=100, env=os.environ | env)


@pytest.fixture(scope="module")
def own() -> dict[str, Any]:
    done = command("--json", "--only", KVSHM)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def leftovers() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith("kvshm.bench-peers-")]


def test_form(own: dict[str, Any]) -> None:
    jsonschema.validate(own, SCHEMA)
    assert not leftovers()


def test_a_row_for_each_source_and_shape_of_kvshm(own: dict[str, Any]) -> None:
    scale = measure.QUICK
    wanted = {(KVSHM, source, tokens, block) for source in SOURCES for tokens, _ in scale.prompts
              for block in scale.blocks}
    rows = {(r["peer"], r["source"], r["tokens"], r["block"]): r for r in own["rows"]}
    assert set(rows) == wanted and len(own["rows"]) == len(wanted)
    for row in rows.values():
        low, high = row["spread"]
        assert 0 < row["value"] and low <= high and row["samples"] == scale.rounds
        assert row["ns_per_token"] == pytest.approx(1000 * row["value"] / row["tokens"])
    for tokens, _ in scale.prompts:  # each source includes the work of the one before
        keys, hashes, ids = (rows[KVSHM, source, tokens, 16]["value"] for source in SOURCES)
        assert keys < 1.3 * hashes and hashes < 1.3 * ids and keys < ids  # of few quick rounds


def test_without_a_peer_there_is_nothing_to_be_ahead_of(own: dict[str, Any]) -> None:
    assert own["aims"] and all(a["times"] is None and a["holds"] is None for a in own["aims"])


def test_three_rows_a_table() -> None:
    done = command("--only", KVSHM)
    assert done.returncode == 0, done.stderr
    for title in SOURCES.values():
        found = [line for line in done.stdout.splitlines() if line.strip().startswith(title)]
        assert len(found) == len(measure.QUICK.prompts) * len(measure.QUICK.blocks)
        assert all(" us (" in line for line in found)
    assert "commit" in done.stdout and "load" in done.stdout


def test_unknown_peers_are_refused() -> None:
    done = command("--only", "memcached")
    assert done.returncode == 2 and "memcached: expected some of kvshm, lmcache" in done.stderr


def test_kvshm_is_always_among_them() -> None:
    assert measure.names("redis") == [KVSHM, "redis"]


def run(monkeypatch: pytest.MonkeyPatch, **peers: Peer) -> Result:
    for name, peer in peers.items():
        monkeypatch.setitem(PEERS, name, peer)
    return measure.measure(list(peers), SCALE, Progress([f"{b} tokens a block" for b in (16, 256)]))


def toy(path: Path, less: int) -> Peer:
    path.write_text(TOY.format(here=str(catalog.HERE), less=less))
    return Peer("Toy", str(path), True)


def test_a_peer_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, toy=toy(tmp_path / "good.py", 0))
    assert result.versions == {"toy": "toy 1"} and len(result.cells) == 6
    assert all(cell.value and not cell.reason for cell in result.cells)


def test_a_look_up_that_misses_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, toy=toy(tmp_path / "bad.py", 1))
    small = [cell for cell in result.cells if cell.block == 16]
    assert len(small) == 3 and all(cell.value is None for cell in small)
    assert {cell.reason for cell in small} == {"keys: 5 of 6 blocks found"}


def test_one_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import a_module_that_is_not_there\n")
    result = run(monkeypatch, broken=Peer("Broken", str(script), True))
    assert len(result.cells) == 6
    assert {(cell.value, cell.reason) for cell in result.cells} == {
        (None, "ModuleNotFoundError: No module named 'a_module_that_is_not_there'")}


@pytest.mark.timeout(300)
def test_one_that_cannot_be_installed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    absent = Peer("Absent", "drive_absent.py", True, (("kvshm-peer-that-is-not-there==1",),))
    result = run(monkeypatch, kvshm=PEERS[KVSHM], absent=absent)
    assert "No matching distribution found for kvshm-peer-that-is-not-there==1" in (
        result.absent["absent"])
    for cell in result.cells:
        assert (cell.value is None) == (cell.peer == "absent")
        assert cell.reason == result.absent.get(cell.peer, "")
    shown = table.table(
        {"cpu": "", "cpus": 1, "kernel": "", "memory_bytes": 0, "load": 0.0, "kvshm": "",
         "commit": "", "python": ""}, [KVSHM, "absent"], SCALE, result)
    assert "not measured: kvshm-peer-that-is-not-there==1: ERROR" in shown


def test_what_the_system_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(environments.Absent, match="no libabsent.so.9 .*apt-get install libabsent9"):
        environments.need("x", {"libabsent.so.9": "libabsent9"}, {})
    with pytest.raises(environments.Absent, match="no absent-server"):
        environments.need("x", {}, {"absent-server": "absent"})
    environments.need("x", {"libc.so.6": "libc6"}, {"sh": "dash"})


@pytest.mark.timeout(300)
def test_an_environment_is_made_once_and_only_a_whole_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python = environments.python_with("x", ())
    assert python.is_relative_to(tmp_path / "kvshm" / "envs") and python.exists()
    made = python.parent.stat().st_mtime_ns
    assert environments.python_with("x", ()) == python
    assert python.parent.stat().st_mtime_ns == made
    (python.parents[1] / "complete").unlink()
    environments.python_with("x", ())
    assert python.parent.stat().st_mtime_ns != made
    assert environments.folder_of((("a==1",),)) != environments.folder_of((("a==2",),))


def test_hashes_are_chained_and_of_full_blocks() -> None:
    tokens = list(range(40))
    made = driver.engine_hashes(tokens, 16)
    assert [len(one) for one in made] == [32, 32]
    assert driver.engine_hashes(tokens[:16], 16) == made[:1]
    other = driver.engine_hashes([99, *tokens[1:]], 16)
    assert not set(other) & set(made)


def test_requests_are_the_same_in_every_process_and_differ_from_each_other() -> None:
    shape = driver.Shape(100, 3)
    some = driver.requests(shape, 16)
    assert some == driver.requests(shape, 16)
    assert len({one.hashes[0] for one in some}) == 3 and some[0].blocks == 6
    assert np.array(some[0].tokens).max() < 150_000


def test_aims_are_beside_the_nearest_of_their_kind() -> None:
    values = {KVSHM: 2.0, "lmcache": 3.0, "mooncake": 190.0, "redis": 250.0}
    result = Result([Cell(name, source, 100, 16, value, (value, value), 1)
                     for name, value in values.items() for source in SOURCES])
    scale = Scale(blocks=(16,), prompts=((100, 2),))
    got = {(a["source"], a["beside"]): a for a in table.aims(list(values), scale, result)}
    keys = got["keys", "between processes"]
    assert (keys["nearest"], keys["times"], keys["holds"]) == ("mooncake", 95.0, False)
    ids = got["tokens", "in one process"]
    assert (ids["nearest"], ids["times"], ids["holds"]) == ("lmcache", 1.5, True)


def test_the_lock_of_an_environment_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments, "LOCK_LIMIT", 0.3)
    folder = environments.folder_of(())
    folder.parent.mkdir(parents=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        environments.fcntl.flock(lock, environments.fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(environments.Absent, match="made elsewhere"):
            environments.python_with("x", ())
        assert time.monotonic() - began < 10
