# SPDX-License-Identifier: Apache-2.0
"""What must not be found: another adapter's KV (S30), another tenant's (S34), under a layout that
is not understood (S76)."""
from __future__ import annotations

import logging
import sys

import kvshm
import numpy as np
import pytest
from kvshm.connectors.vllm import adapters
from support import mock_engine
from support.cli import kvshm_cli
from support.mock_engine import BLOCK, HEADS
from support.mock_model import Tensor
from support.mock_pool import lora
from support.mock_vllm import KVConnectorRole

SIZE = 8 * BLOCK


@pytest.fixture
def adapter(tmp_path):
    """adapter(number, content, folder): a LoRA request with files of that content."""
    def make(number, content, folder=None):
        path = tmp_path / (folder or f"adapter{number}")
        path.mkdir(exist_ok=True)
        (path / "adapter_model.bin").write_bytes(content)
        return lora(number, str(path))
    yield make
    adapters._seen.clear()


def test_s30_adapters(engine, truth, prompt, adapter):
    """No adapter, X, Y, X with new weights under its name, an equal name with another id."""
    tokens = prompt(SIZE + 1)
    x, y = adapter(1, b"x" * 100), adapter(2, b"y" * 100)
    a = engine(cached=False)
    kinds = [{}, {"lora": x}, {"lora": y}]
    for kind in kinds:
        one = a.run(tokens, 1, **kind)
        assert one.external == 0 and one.output == a.model.generate(tokens, 1, one.adapter)
    stored = a.stats["saved_blocks"]
    assert stored == 3 * 8
    b = engine(cached=False)
    for kind in kinds:
        assert b.run(tokens, 1, **kind).external == SIZE
    # Loaded anew with other weights, in place, under the same name, id and path.
    adapters._seen.clear()
    newer = adapter(1, b"X" * 100)
    one = engine(cached=False).run(tokens, 1, lora=newer)
    assert one.external == 0
    # The same name and path with another id: the same files, so the same KV is right for it.
    twin = lora(5, newer.lora_path)
    twin.lora_name = newer.lora_name
    assert b.connector.get_num_new_matched_tokens(b.add(tokens, lora=twin), 0)[0] == SIZE
    b.abort(b.waiting[0])
    b.drain()


def test_s34_salts(engine, truth, prompt, caplog):
    caplog.set_level(logging.DEBUG)
    tokens = prompt(SIZE + 1)
    a = engine(cached=False)
    one = a.run(tokens, 1, salt="tenant-secret-a")
    b = engine(cached=False)
    look = truth(b)
    assert b.run(tokens, 1, salt="tenant-secret-a").external == SIZE
    c = engine(cached=False, options={"write": False})
    for salt in ("", "tenant-b", "tenant-secret-a ", "never stored"):
        other = c.add(tokens, 1, salt=salt)
        assert c.connector.get_num_new_matched_tokens(other, 0) == (0, False)
        (keys,) = look.keys(other)
        assert not look.arena.presence(keys[:]).any()
        c.abort(other)
    c.drain()
    assert look.visible(one) == [list(range(8))]
    said = kvshm_cli("stat", "--json", look.arena.name).out + caplog.text
    assert "secret" not in said


def test_another_seed_turns_it_off(engine, prompt, caplog):
    """vLLM's hashes begin with a value that no other process has."""
    sys.modules["vllm.v1.core.kv_cache_utils"].NONE_HASH = b"random"
    a = engine(cached=False)
    tokens = prompt(SIZE + 1)
    assert a.run(tokens, 1).external == a.run(tokens, 1).external == 0
    assert a.stats.get("saved_blocks", 0) == 0
    assert "PYTHONHASHSEED" in caplog.text


# ---- S76 ---------------------------------------------------------------------------------------

BLOCKS = 8


def plain():
    return np.zeros((BLOCKS, HEADS, BLOCK, 1), np.uint64)


def tokens_before_heads():
    return np.zeros((BLOCKS, BLOCK, HEADS, 1), np.uint64).transpose(0, 2, 1, 3)


def with_a_gap():
    return np.zeros((BLOCKS, 3, HEADS, BLOCK, 1), np.uint64)[:, 1]


@pytest.fixture
def build(module, arena_name, monkeypatch):
    """build(first layer, second layer): an engine with these arrays as its tensors."""
    made = []

    def make(first, second):
        class Special(mock_engine.Cache):
            def __init__(self, model, blocks, block_tokens):
                super().__init__(model, blocks, block_tokens)
                self.arrays = [{"g0.layers.0": first, "g0.layers.1": second}]

        monkeypatch.setattr(mock_engine, "Cache", Special)
        made.append(mock_engine.Engine(module.KvshmConnector, KVConnectorRole,
                                       {"name": arena_name}, blocks=BLOCKS, cached=False))
        return made[-1]
    yield make
    for one in made:
        one.shutdown()


@pytest.mark.parametrize("kind", [plain, tokens_before_heads, with_a_gap])
def test_s76_layouts_that_round_trip(build, prompt, kind):
    tokens = prompt(4 * BLOCK + 1)
    a = build(kind(), kind())
    assert a.run(tokens, 2).output == a.model.generate(tokens, 2)
    b = build(kind(), kind())
    one = b.run(tokens, 2)
    assert one.external == 4 * BLOCK and one.output == b.model.generate(tokens, 2)


def wrong_size():
    return np.zeros((BLOCKS, HEADS, BLOCK, 4), np.uint64)


def overlapping():
    array = np.zeros(BLOCKS * HEADS * BLOCK, np.uint64)
    return np.lib.stride_tricks.as_strided(array, (BLOCKS, HEADS, BLOCK, 1), (8, 32, 8, 8))


def beyond_its_memory():
    array = np.zeros((BLOCKS, HEADS, BLOCK, 1), np.uint64)
    return np.lib.stride_tricks.as_strided(
        array, array.shape, (array.strides[0] + 64, *array.strides[1:]))


def too_few_blocks():
    return np.zeros((BLOCKS - 1, HEADS, BLOCK, 1), np.uint64)


@pytest.mark.parametrize("kind", [wrong_size, overlapping, beyond_its_memory, too_few_blocks])
def test_s76_a_layout_that_is_not_understood_is_refused(build, kind):
    """At registration, with the layer's name; nothing was copied."""
    with pytest.raises(kvshm.Error, match=r"g0\.layers\.") as told:
        build(plain(), kind())
    assert isinstance(told.value, (kvshm.InvalidArgument, kvshm.Unsupported))


def test_s76_a_layer_that_is_missing(engine):
    a = engine()
    some = {"g0.layers.0": Tensor(plain())}
    with pytest.raises(kvshm.InvalidArgument, match=r"layer g0\.layers\.1: no KV cache"):
        a.workers[0].register_kv_caches(some)


def test_sleep_and_wake(engine, prompt):
    """The tensors go and come back empty: they are not touched meanwhile."""
    tokens = prompt(SIZE + 1)
    a = engine(cached=False)
    a.run(tokens, 1)
    a.workers[0].unregister_kv_caches()
    asleep = a.run(tokens, 2)
    assert asleep.output == a.model.generate(tokens, 2)
    for array in a.cache.arrays[0].values():
        array[:] = 0
    a.workers[0].restore_kv_caches()
    awake = a.run(tokens, 2)
    assert awake.external == SIZE and awake.output == a.model.generate(tokens, 2)
    assert a.stats["loaded_blocks"] == 8
