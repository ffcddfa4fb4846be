# SPDX-License-Identifier: Apache-2.0
"""S79: every option of the connector takes effect, and the log says what is in force."""
from __future__ import annotations

import dataclasses
import logging
import sys
import time

import kvshm
import pytest
from support.mock_engine import BLOCK
from support.mock_model import Model
from support.mock_truth import arena_size

SIZE = 16 * BLOCK


def hit(engine, tokens, n=1):
    one = engine.run(tokens, n)
    assert one.output == engine.model.generate(tokens, n)
    return one.external


def test_size_0_is_off(engine, prompt, arena_name, caplog):
    caplog.set_level(logging.INFO, logger="vllm.kvshm")
    a = engine(options={"size": 0})
    assert hit(a, prompt(SIZE + 1)) == 0
    assert not {"saved_blocks", "memory_tokens"} & {k for k, v in a.stats.items() if v}
    assert a.reset_prefix_cache()
    assert any("kvshm: off; options:" in line for line in caplog.messages)
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.Arena.attach(arena_name)


def test_read_and_write(engine, truth, prompt):
    tokens = prompt(SIZE + 1)
    silent = engine(options={"write": False})
    one = silent.run(tokens, 1)
    look = truth(silent)
    assert look.visible(one) == [[]]
    writer = engine(options={"read": False}, cached=False)
    assert hit(writer, tokens) == hit(writer, tokens) == 0
    assert look.visible(one) == [list(range(16))]
    assert hit(engine(options={"write": False}), tokens) == SIZE


def test_save_decode(engine, truth, prompt):
    tokens = prompt(SIZE + 1)
    without = engine(options={"save_decode": False}).run(tokens, 20)
    a = engine(cached=False)
    assert truth(a).visible(without) == [list(range(16))]
    a.run(tokens, 20)
    assert truth(a).visible(without) == [list(range((SIZE + 20) // BLOCK))]


def test_min_tokens(engine, prompt):
    tokens = prompt(SIZE + 1)
    engine().run(tokens[:5 * BLOCK + 1], 1)
    assert hit(engine(options={"min_tokens": 5 * BLOCK + 1, "write": False}), tokens) == 0
    assert hit(engine(options={"min_tokens": 5 * BLOCK}), tokens) == 5 * BLOCK


@pytest.mark.parametrize(("load", "windows", "later"), [
    ("auto", (None,), False), ("sync", (None,), False), ("async", (None,), True),
    ("auto", (None, 8), True), ("auto", (8,), True)])
def test_load(engine, prompt, load, windows, later):
    model = Model(windows)
    tokens = prompt(SIZE + 1)
    engine(model=model).run(tokens, 1)
    b = engine(model=model, options={"load": load})
    assert hit(b, tokens) == SIZE
    assert bool(b.received) == later


@pytest.mark.parametrize("windows", [(None, 8), (None, None), (8,)])
def test_load_sync_that_could_not_fail_is_refused(engine, arena_name, windows):
    with pytest.raises(kvshm.Unsupported, match="use load='auto' or 'async'"):
        engine(model=Model(windows), options={"load": "sync"})
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.Arena.attach(arena_name)


def test_load_timeout(engine, prompt, module, monkeypatch):
    """A load that waited too long behind another is not begun; its request is computed."""
    tokens = [prompt(SIZE + 1, seed) for seed in range(2)]
    a = engine()
    for one in tokens:
        a.run(one, 1)
    b = engine(options={"load": "async", "load_timeout": 0.1})
    transfers = sys.modules[module.WorkerSide.__module__].HostTransfers
    real = transfers._load

    def slow(self, *args):
        time.sleep(0.3)
        return real(self, *args)

    monkeypatch.setattr(transfers, "_load", slow)
    made = [b.add(one, 2) for one in tokens]
    end = time.monotonic() + 20
    while b.requests and time.monotonic() < end:
        b.step()
    b.drain()
    assert [one.output for one in made] == [b.model.generate(one, 2) for one in tokens]
    assert (b.stats["loaded_blocks"], b.stats["failed_blocks"]) == (16, 16)


def test_priority_label_and_quota(engine, truth, prompt):
    tokens = prompt(SIZE + 1)
    a = engine(options={"priority": 77, "label": "mine"})
    one = a.run(tokens, 1)
    look = truth(a)
    (keys,) = look.keys(one)
    with look.arena.match(keys[:]) as lease:
        assert {look.arena.block(int(i)).priority for i in lease.ids} == {77}
    assert "mine" in {p.label for p in look.arena.processes()}
    b = engine(options={"quota": 5 * 128, "label": "-"})
    assert "e" in {p.label for p in look.arena.processes()}
    assert hit(b, tokens) <= 5 * BLOCK
    two = b.run(prompt(SIZE + 1, 2), 1)
    assert look.visible(two) == [[]] and b.stats["refused_blocks"] > 0


def test_what_is_handed_to_the_arena(engine, monkeypatch):
    """name, size, dir, timeout, pin, huge, numa: as Arena.open gets them."""
    seen = {}
    real = kvshm.Arena.open

    class Watching(kvshm.Arena):
        @classmethod
        def open(cls, name, **options):
            seen.update(options, name=name)
            return real(name, **{**options, "huge": "off", "numa": "auto", "dir": None})

    monkeypatch.setattr(kvshm, "Arena", Watching)
    a = engine(options={"size": "4MiB", "timeout": 3.5, "pin": "auto", "huge": "require",
                        "numa": 1, "dir": "/dev/shm"})
    assert seen["name"] == a.connector._scheduler.host.arena.name
    wanted = {"size": 4 << 20, "timeout": 3.5, "pin": "auto", "huge": "require", "numa": 1,
              "dir": "/dev/shm"}
    assert {name: seen[name] for name in wanted} == wanted


def test_namespace_and_weights_keep_apart(engine, new_name):
    identities = set()
    for options in ({}, {"namespace": "x"}, {"weights": "other"}, {"weights": "",
                                                                   "weights_check": "name"}):
        a = engine(options={"name": new_name(), **options})
        identities.add(a.connector._scheduler.host.identity.text)
    assert len(identities) == 4


def test_events(engine, prompt):
    """From the engine that stored, in order, with tokens and parents; off by default."""
    tokens = prompt(4 * BLOCK + 1)
    a = engine(options={"events": True, "size": arena_size(1)})
    a.run(tokens, 1)
    (told,) = a.connector.take_events()
    assert told.kind == "stored" and told.token_ids == tokens[:4 * BLOCK]
    assert told.parent_block_hash is None and told.block_size == BLOCK and told.medium == "CPU"
    hashes = told.block_hashes
    a.run(tokens + prompt(4 * BLOCK, 1), 1)
    (told,) = a.connector.take_events()
    assert told.parent_block_hash == hashes[-1] and len(told.block_hashes) == 4
    blocks = a.connector._scheduler.host.arena.info().blocks
    for seed in range(2, 3 + blocks // 8):
        a.run(prompt(8 * BLOCK + 1, seed), 1)
    events = list(a.connector.take_events())
    removed = [one for event in events if event.kind == "removed" for one in event.block_hashes]
    assert removed and set(removed) <= {
        *hashes, *told.block_hashes,
        *(one for event in events if event.kind == "stored" for one in event.block_hashes)}
    assert list(engine().connector.take_events()) == []


def test_log_requests(engine, prompt, caplog, script):
    caplog.set_level(logging.INFO, logger="vllm.kvshm")
    tokens = prompt(SIZE + 1)
    engine().run(tokens, 1, request_id="one")
    engine().run(tokens, 1, request_id="two")
    lines = [line for line in caplog.messages if line.startswith(("kvshm: one", "kvshm: two"))]
    assert lines[0].startswith(
        f"kvshm: one: {SIZE + 1} tokens asked, 0 local, 0 memory, 0 disk, {SIZE + 1} computed")
    assert f"two: {SIZE + 1} tokens asked, 0 local, {SIZE} memory, 0 disk, 1 computed" in lines[1]
    assert "16 blocks saved" in lines[0] and "GB/s" in lines[1]
    script.bad_loads = lambda rank, job: (10,)
    engine(cached=False).run(tokens, 1, request_id="fails")
    (line,) = [line for line in caplog.messages if line.startswith("kvshm: fails: 65")]
    assert f"{10 * BLOCK} memory" in line and "6 blocks failed to load" in line
    script.bad_loads = lambda rank, job: ()
    caplog.clear()
    engine(options={"log_requests": False}).run(tokens, 1, request_id="three")
    assert not [line for line in caplog.messages if "three" in line]


def test_the_log_says_what_is_in_force(engine, caplog, monkeypatch, arena_name):
    caplog.set_level(logging.INFO, logger="vllm.kvshm")
    monkeypatch.setenv("KVSHM_PRIORITY", "60")
    monkeypatch.setenv("KVSHM_MIN_TOKENS", "5")
    engine(options={"min_tokens": 9}, policy="fail")
    (line,) = [line for line in caplog.messages if "options:" in line]
    assert f"arena {arena_name}" in line
    assert "priority=60 (environment KVSHM_PRIORITY)" in line
    assert "min_tokens=9 (kv_connector_extra_config)" in line
    assert any("min_tokens" in m and "environment says 5" in m for m in caplog.messages)
    assert any("kv_load_failure_policy is 'fail'" in m for m in caplog.messages)
    with pytest.raises(kvshm.InvalidArgument, match="priority"):
        engine(options={"prioritty": 5})


def test_every_option_has_a_test_here():
    """But trace and trace_limit, which test_trace.py is about, and tier_..., of test_disk.py."""
    text = open(__file__).read() + open(__file__.replace("test_options", "test_disk")).read()
    missing = [field.name for field in dataclasses.fields(kvshm.Config)
               if field.init and not field.name.startswith("_") and field.name != "overridden"
               and field.name not in text]
    assert not missing
