# SPDX-License-Identifier: Apache-2.0
"""`kvshm replay`: the formats of traces, and what is said of those that are none."""
import base64
import contextlib
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm.tools.replay.expanding import expand
from kvshm.tools.replay.failures import ReplayError
from kvshm.tools.replay.reading import read_trace
from kvshm.tools.replay.trace import Trace
from support.cli import kvshm_cli

REQUESTS = [[0, 1, 2, 3, 4], [0, 1, 5], [], [0, 1, 2, 3, 6, 7, 8, 9, 10]]
HEADER = {"format": "kvshm-lookups", "version": 1, "block_tokens": 16}


def mooncake(requests: Any = REQUESTS, size: int = 512) -> list[dict[str, Any]]:
    return [dict(timestamp=500 + 250 * i, input_length=len(ids) * size - bool(ids), output_length=1,
                 hash_ids=ids) for i, ids in enumerate(requests)]


def runs(size: int = 64) -> list[dict[str, Any]]:
    found = [[[0, 5]], [[0, 2], [5, 1]], [], [[0, 4], [6, 5]]]
    return [dict(timestamp=500 + 250 * i, input_length=len(ids) * size, session=i % 2, runs=pairs)
            for i, (pairs, ids) in enumerate(zip(found, REQUESTS, strict=True))]


def lookups(requests: Any = REQUESTS) -> list[dict[str, Any]]:
    return [HEADER] + [
        dict(t=7.5 + 0.25 * i, tenant=3, tokens=16 * len(ids),
             ids=base64.b64encode(np.array(ids, "<u8").tobytes()).decode())
        for i, ids in enumerate(requests)]


def save(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def requests_of(trace: Trace) -> list[list[int]]:
    return [trace.ids[a:b].tolist() for a, b in zip(trace.bounds, trace.bounds[1:], strict=False)]


@pytest.mark.parametrize("lines, size", [(mooncake(), 512), (runs(), 64), (lookups(), 16)])
def test_formats(tmp_path: Path, lines: Any, size: int) -> None:
    trace = read_trace(save(tmp_path / "t", lines))
    assert requests_of(trace) == REQUESTS
    assert trace.block_tokens == size
    assert trace.seconds.tolist() == [0, 0.25, 0.5, 0.75]
    assert (trace.requests, trace.accesses, trace.unique) == (4, 17, 11)
    assert (trace.dense[:5].tolist(), int(trace.dense.max())) == ([0, 1, 2, 3, 4], 10)


def test_sessions_and_tenants(tmp_path: Path) -> None:
    with_sessions = read_trace(save(tmp_path / "r", runs()))
    assert with_sessions.sessions is not None and with_sessions.tenants is None
    assert with_sessions.sessions.tolist() == [0, 1, 0, 1]
    named = [dict(line, session=["b", "a"][i % 2]) for i, line in enumerate(runs())]
    with_names = read_trace(save(tmp_path / "n", named))
    assert with_names.sessions is not None and with_names.sessions.tolist() == [0, 1, 0, 1]
    with_tenants = read_trace(save(tmp_path / "l", lookups()))
    assert with_tenants.tenants is not None and with_tenants.sessions is None
    assert with_tenants.tenants.tolist() == [3, 3, 3, 3]


def test_salted_ids_are_large_numbers(tmp_path: Path) -> None:
    large = [[2**64 - 1, 5], [2**64 - 1, 2**63]]
    trace = read_trace(save(tmp_path / "t", lookups(large)))
    assert requests_of(trace) == large
    assert (trace.unique, trace.dense.tolist()) == (3, [2, 0, 2, 1])


def test_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path(save(tmp_path / "t.jsonl", mooncake())).read_bytes()
    (tmp_path / "g").write_bytes(gzip.compress(plain[:200]) + gzip.compress(plain[200:]))
    assert requests_of(read_trace(str(tmp_path / "g"))) == REQUESTS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(
        io.BytesIO(gzip.compress(plain)))))
    assert requests_of(read_trace("-")) == REQUESTS
    (tmp_path / "g").write_bytes(gzip.compress(plain)[:-9])
    with pytest.raises(ReplayError, match="ends too early"):
        read_trace(str(tmp_path / "g"))


def test_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = Path(save(tmp_path / "t.jsonl", mooncake())).read_bytes()
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "z").write_bytes(pack(plain[:200]) + pack(plain[200:]))
    assert requests_of(read_trace(str(tmp_path / "z"))) == REQUESTS


def test_zstd_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "z").write_bytes(b"\x28\xb5\x2f\xfd....")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ReplayError, match="zstandard") as caught:
        read_trace(str(tmp_path / "z"))
    assert "kvshm[tools]" in caught.value.remedy


@pytest.mark.parametrize("lines", [mooncake(), runs()])
@pytest.mark.parametrize("every", [2, 3])
def test_coarser_blocks(tmp_path: Path, lines: Any, every: int) -> None:
    path = save(tmp_path / "t", lines)
    trace = read_trace(path, every=every)
    assert requests_of(trace) == [ids[every - 1::every] for ids in REQUESTS]
    assert trace.block_tokens == every * read_trace(path).block_tokens


def test_tokens_per_block(tmp_path: Path) -> None:
    path = save(tmp_path / "t", runs())
    assert requests_of(read_trace(path, tokens_per_block=128)) == [i[1::2] for i in REQUESTS]
    with pytest.raises(ReplayError, match="--tokens-per-block 100: the trace's blocks have 64"):
        read_trace(path, tokens_per_block=100)


def test_expansion_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of any length, some longer than a chunk, some empty."""
    r = np.random.default_rng(5)
    counts, per = r.integers(1, 30, 400), r.integers(0, 6, 300)
    per[per.cumsum() > 400] = 0
    counts = counts[:per.sum()]
    firsts = r.integers(0, 1 << 60, len(counts)).astype(np.uint64)
    flat = [[int(f) + k for f, n in zip(firsts[a - p:a], counts[a - p:a], strict=True)
             for k in range(n)] for a, p in zip(per.cumsum(), per, strict=True)]
    for chunk in (1, 50, 1 << 20):
        monkeypatch.setattr("kvshm.tools.replay.expanding.CHUNK", chunk)
        for every in (1, 8):
            ids, bounds = expand(firsts, counts, per, every)
            assert [ids[a:b].tolist() for a, b in zip(bounds, bounds[1:], strict=False)] == [
                f[every - 1::every] for f in flat]


def test_head_and_select(tmp_path: Path) -> None:
    trace = read_trace(save(tmp_path / "t", runs()))
    for short in (trace.head(2), read_trace(str(tmp_path / "t"), requests=2)):
        assert requests_of(short) == REQUESTS[:2]
        assert short.sessions is not None and short.sessions.tolist() == [0, 1]
    assert requests_of(trace.select(np.array([3, 0, 2]))) == [REQUESTS[3], REQUESTS[0], []]


def test_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "mine.jsonl", mooncake())
    with pytest.raises(ReplayError, match="KVSHM_TRACES is not set"):
        monkeypatch.delenv("KVSHM_TRACES", raising=False)
        read_trace("mine")
    monkeypatch.setenv("KVSHM_TRACES", f"/nowhere:{tmp_path}")
    assert requests_of(read_trace("mine")) == REQUESTS
    with pytest.raises(ReplayError, match="other: no such file"):
        read_trace("other")


def test_a_log_that_is_being_written(tmp_path: Path) -> None:
    """By writers of which one was killed; cut off in its last line; and two logs in one."""
    path = save(tmp_path / "t", lookups())
    with open(path, "a") as file:
        file.write('{"t": 9, "tenant"\n')
        file.writelines(json.dumps(line) + "\n" for line in lookups())
        file.write('{"t": 9, "ten')
    trace = read_trace(path)
    assert requests_of(trace) == REQUESTS * 2
    assert (trace.skipped, trace.about()["skipped_lines"]) == (2, 2)


def test_what_a_connector_writes(tmp_path: Path) -> None:
    """Equal keys have equal ids, and nothing else is told of them."""
    from kvshm.index import TraceWriter

    ident = kvshm.Identity(model="m", weights="w", dtype="b", layout="l", block_tokens=16)
    keys = ident.keys(range(160))
    with contextlib.closing(TraceWriter(str(tmp_path / "t"), 16)) as writer:
        for n in (10, 4, 10):
            assert writer.add(keys[:n], 16 * n + 3, "me")
    trace = read_trace(str(tmp_path / "t"))
    assert trace.block_tokens == 16 and trace.tokens.tolist() == [163, 67, 163]
    assert trace.unique == 10 and trace.lengths.tolist() == [10, 4, 10]
    assert requests_of(trace)[0] == requests_of(trace)[2]
    assert requests_of(trace)[1] == requests_of(trace)[0][:4]
    done = kvshm_cli("replay", tmp_path / "t", "--blocks", 20, "--json")
    assert done.json["block_hit_ratio"] == done.json["opt_reference"] == 14 / 24


@pytest.mark.parametrize("text, said", [
    ("", "no requests"),
    ("not json\n", "line 1: "),
    ('{"timestamp": 0, "hash_ids": [1]}\n', "line 1: 'input_length' is missing"),
    ('{"timestamp": 0, "input_length": 5, "hash_ids": [-1]}\n', "line 1: "),
    ('{"timestamp": 0, "input_length": 5, "hash_ids": 3}\n{"x": 1}\n', "line 2: "),
    ('[1]\n', "line 1: "),
    ('{"format": "else", "version": 1}\n', "line 1: wanted kvshm-lookups of version 1, found"),
    ('{"format": "kvshm-lookups", "version": 2}\n', "version 2"),
    (json.dumps(HEADER) + '\n{"t": 0, "tenant": 0, "tokens": 1, "ids": "?"}\n', "no requests"),
    (json.dumps(HEADER) + "\n" + json.dumps({**HEADER, "block_tokens": 32}) + "\n",
     "blocks of 32 tokens after some of 16"),
    ('{"timestamp": 0, "input_length": 0, "hash_ids": []}\n', "how large a block is"),
    ('{"timestamp": 0, "input_length": 9, "runs": [[0, 5], [9, -4]]}\n', "less than nothing"),
    ('{"timestamp": 0, "input_length": 9, "runs": [["a", 5]]}\n', "numbers of its requests: "),
    ('{"timestamp": 0, "input_length": 9, "runs": [[1, 2, 3]]}\n', "line 1: "),
])
def test_what_is_no_trace(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(ReplayError) as caught:
        read_trace(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
