# SPDX-License-Identifier: Apache-2.0
"""`kvshm record`: one trace of several logs of look-ups."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvshm.index import LookupLog, TraceWriter
from support.cli import kvshm_cli

BLOCK = 16


def keys(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, 16), np.uint8)


def log(path: Path, requests: list[tuple[Any, str]], block_tokens: int = BLOCK) -> Path:
    writer = TraceWriter(path, block_tokens)
    for asked, tenant in requests:
        assert writer.add(asked, len(asked) * block_tokens + 5, tenant)
    writer.close()
    return path


def shift(path: Path, seconds: float) -> None:
    """As if the recording had begun so much later."""
    head, *rest = path.read_text().splitlines()
    made = json.loads(head)
    made["started"] += seconds
    path.write_text("\n".join([json.dumps(made), *rest]) + "\n")


def test_merged_by_time_and_numbered_anew(tmp_path: Path) -> None:
    a, b = keys(4, 1), keys(3, 2)
    one = log(tmp_path / "one", [(a, "x"), (b, "y"), (a[:2], "x")])
    other = log(tmp_path / "other", [(a, "x"), (keys(0), "")])
    shift(other, -1000)  # of an earlier host
    out = tmp_path / "trace.jsonl"
    done = kvshm_cli("record", one, other, "--out", out)
    assert (done.code, done.out) == (0, "")
    assert "5 requests in " in done.err
    assert "13 blocks asked for, 11 different, 4 tenants" in done.err
    merged = LookupLog(out)
    found = list(merged)
    assert merged.block_tokens == BLOCK and not merged.started and not merged.salt
    assert [request.tenant for request in found] == [1, 0, 2, 3, 2]
    assert [request.ids.tolist() for request in found] == [
        [0, 1, 2, 3], [], [4, 5, 6, 7], [8, 9, 10], [4, 5]]
    assert [request.tokens for request in found] == [69, 5, 69, 53, 37]
    times = [request.t for request in found]
    assert times[0] == 0 and times == sorted(times) and 999 < times[2] < 1001


def test_files_of_one_secret_have_their_blocks_in_common(tmp_path: Path) -> None:
    one = log(tmp_path / "one", [(keys(4, 1), "x"), (keys(4, 1), "x")])
    head, first, second = one.read_text().splitlines(keepends=True)
    halves = [tmp_path / "half0", tmp_path / "half1"]
    for half, line in zip(halves, (first, second)):
        half.write_text(head + line)
    done = kvshm_cli("record", *halves, "--json")
    assert json.loads(done.err)["blocks_different"] == 4
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert lines[1]["ids"] == lines[2]["ids"] and lines[1]["tenant"] == lines[2]["tenant"] == 1
    assert lines[0] == {"format": "kvshm-lookups", "version": 1, "block_tokens": BLOCK,
                        "salted": True}


def test_mooncakes_format_and_the_first_seconds(tmp_path: Path) -> None:
    one = log(tmp_path / "one", [(keys(3, 1), ""), (keys(2, 1)[:1], "")])
    late = log(tmp_path / "late", [(keys(9, 5), "")])
    shift(late, 500)
    done = kvshm_cli("record", "-q", "--format", "mooncake", "--seconds", "60", late, one)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["hash_ids"] for line in lines] == [[0, 1, 2], [0]] and not done.err
    assert lines[0] == {"timestamp": 0, "input_length": 53, "output_length": 0,
                        "hash_ids": [0, 1, 2]}


def test_a_torn_line_is_said(tmp_path: Path) -> None:
    one = log(tmp_path / "one", [(keys(3, 1), ""), (keys(2, 2), "")])
    one.write_bytes(one.read_bytes()[:-20])
    done = kvshm_cli("record", one)
    assert done.code == 0 and len(done.out.splitlines()) == 2
    assert "1 lines were not whole and are left out" in done.err


@pytest.mark.parametrize("form", ["lookups", "mooncake"])
def test_nothing_of_the_logs_is_left_in_it(tmp_path: Path, form: str) -> None:
    one = log(tmp_path / "one", [(keys(5, 1), "her salt")])
    made = kvshm_cli("record", "--format", form, one).out
    ids = list(LookupLog(one))[0].ids
    head = json.loads(one.read_text().splitlines()[0])
    assert not any(str(part) in made for part in [*ids.tolist(), head["salt"], head["started"]])


def test_what_is_no_log_is_one_line(tmp_path: Path, arena_name: str) -> None:
    none = kvshm_cli("record", arena_name)
    assert none.code == 3 and "an arena keeps no record of look-ups itself" in none.err
    (tmp_path / "x").write_text("hello\n")
    wrong = kvshm_cli("record", tmp_path / "x")
    assert wrong.code == 2 and "is no log of look-ups" in wrong.err
    mixed = kvshm_cli("record", log(tmp_path / "a", []), log(tmp_path / "b", [], 32))
    assert mixed.code == 2 and "logs of 16 and 32 tokens a block" in mixed.err
    nowhere = kvshm_cli("record", tmp_path / "a", "--out", tmp_path / "no" / "dir")
    assert nowhere.code == 2 and nowhere.err.count("\n") == 1
    assert kvshm_cli("record", tmp_path / "a").out.count("\n") == 1
