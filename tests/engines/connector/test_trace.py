# SPDX-License-Identifier: Apache-2.0
"""Option trace: each request's look-up is written down once, and nothing of it harms an engine."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kvshm.index import Lookup, LookupLog
from kvshm.tools.replay.reading import read_trace
from support.cli import kvshm_cli
from support.mock_engine import BLOCK
from support.mock_model import Model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def read(path: Path) -> list[Lookup]:
    log = LookupLog(path)
    found = list(log)
    assert log.block_tokens == BLOCK and log.skipped == 0
    return found


def shared(a: Lookup, b: Lookup) -> int:
    """Blocks at their beginning that are the same."""
    same = [x == y for x, y in zip(a.ids, b.ids)]
    return same.index(False) if False in same else len(same)


def test_two_engines_one_file(engine, prompt, path):
    """A request is one line however often it is tried; equal prefixes have equal ids, also of
    another engine; a salt is a tenant, and keeps blocks apart."""
    one, other = (engine(options={"trace": str(path)}) for _ in range(2))
    tokens = prompt(6 * BLOCK)
    first = one.add([*tokens, 1, 2])
    for _ in range(3):
        one.connector.get_num_new_matched_tokens(first, 0)
    one.drain()
    other.run([*tokens[:4 * BLOCK], 7, 7, 7, 7], 3)
    other.run(tokens, 1, salt="her")
    one.run(tokens, 1, salt="his")
    one.run(tokens, 1, salt="her")
    one.run(tokens[:BLOCK - 1], 1)  # not a block
    for each in (one, other):
        assert each.done and each.connector._scheduler.lookups._writer
        each.connector._scheduler.close()
    found = read(path)
    assert len(found) == 6
    by_tokens = {(x.tokens, x.tenant): x for x in found}
    a, b = by_tokens[6 * BLOCK + 2, 0], by_tokens[5 * BLOCK, 0]
    assert len(a.ids) == 6 and len(b.ids) == 5 and shared(a, b) == 4
    salted = [x for x in found if x.tenant]
    assert sorted(x.tenant for x in salted) in ([1, 1, 2], [1, 2, 2])
    hers = [x for x in salted if sum(x.tenant == y.tenant for y in salted) == 2]
    his = next(x for x in salted if x not in hers)
    assert shared(*hers) == 6 and shared(hers[0], his) == shared(a, hers[0]) == 0
    assert len(by_tokens[BLOCK - 1, 0].ids) == 0
    assert all(0 <= x.t < 60 for x in found)


def test_preemption_and_a_failed_load_are_no_new_lookup(engine, prompt, path):
    a = engine(options={"trace": str(path)}, blocks=40)
    one = a.add(prompt(8 * BLOCK), 20)
    a.step()
    a.preempt(one)
    a.drain()
    assert one.preemptions and len(one.output) == 20
    a.shutdown()
    (found,) = read(path)
    assert found.tokens == 8 * BLOCK and len(found.ids) == 8


def test_replay_reads_it(engine, prompt, path):
    """From an engine to the answer: does it pay for my load?"""
    a, b = (engine(options={"trace": str(path)}) for _ in range(2))
    tokens = prompt(6 * BLOCK)
    a.run([*tokens, 1], 1)
    with open(path, "ab") as file:
        file.write(b'{"t":3,"ten\n')  # a third one was killed while it wrote
    for each, seed in ((b, 1), (a, 2), (b, 3)):
        each.run([*tokens[:4 * BLOCK], *prompt(2 * BLOCK, seed)], 1, salt="hers" * (seed == 3))
    for each in (a, b):
        each.shutdown()
    trace = read_trace(str(path))
    log = LookupLog(path)
    found = list(log)
    assert log.skipped == 1 and trace.block_tokens == BLOCK and len(found) == 4
    assert [trace.ids[x:y].tolist() for x, y in zip(trace.bounds, trace.bounds[1:])] == [
        one.ids.tolist() for one in found]
    assert trace.tokens.tolist() == [one.tokens for one in found]
    assert trace.tenants.tolist() == [one.tenant for one in found]
    assert sorted(trace.tenants.tolist()) == [0, 0, 0, 1]
    # 4 of the 6 blocks of two requests are those of the first; her salt shares nothing.
    done = kvshm_cli("replay", path, "--fraction", "1", "--json", "--no-reference", "-q")
    assert done.code == 0, done.err
    assert done.json["block_hit_ratio"] == pytest.approx(8 / 24, abs=0.004)


@pytest.mark.parametrize("options", [{"size": 0}, {"read": False}])
def test_it_records_also_where_nothing_is_loaded(engine, prompt, path, options):
    """So that one can ask before there is an arena."""
    a = engine(options={"trace": str(path), **options})
    for seed in (1, 2, 1):
        a.run(prompt(4 * BLOCK, seed), 1)
    a.shutdown()
    x, y, z = read(path)
    assert shared(x, z) == 4 and shared(x, y) == 0


def test_groups_with_windows(engine, prompt, path):
    a = engine(options={"trace": str(path)}, model=Model((8, None)))
    a.run(prompt(5 * BLOCK), 1)
    a.shutdown()
    assert [len(x.ids) for x in read(path)] == [5]


@pytest.mark.parametrize("where", ["/dev/null/x/trace", "/proc/trace"])
def test_a_file_that_cannot_be_is_one_warning(engine, prompt, where, caplog):
    caplog.set_level(logging.WARNING, logger="vllm.kvshm")
    a = engine(options={"trace": where})
    one = a.run(prompt(4 * BLOCK), 2)
    assert one.output == a.model.generate(prompt(4 * BLOCK), 2)
    told = [line for line in caplog.messages if "trace" in line]
    assert len(told) == 1 and "look-ups are not recorded" in told[0]


def test_the_limit(engine, prompt, path, caplog):
    caplog.set_level(logging.WARNING, logger="vllm.kvshm")
    a = engine(options={"trace": str(path), "trace_limit": 100})
    assert a.run(prompt(4 * BLOCK), 2).output == a.model.generate(prompt(4 * BLOCK), 2)
    a.shutdown()
    assert read(path) == []
    assert sum("at its limit of 100 bytes" in line for line in caplog.messages) == 1
    assert any("0 requests recorded, 1 dropped" in line for line in caplog.messages)
