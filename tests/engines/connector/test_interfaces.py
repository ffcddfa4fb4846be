# SPDX-License-Identifier: Apache-2.0
"""S80: the oldest and the newest interface of vLLM; and the connector as a child of vLLM's
MultiConnector, beside another."""
from __future__ import annotations

from types import SimpleNamespace as NS

import kvshm
import pytest
from support.mock_engine import BLOCK, Engine, kv_cache_config
from support.mock_model import Model
from support.mock_vllm import (KVConnectorMetadata, KVConnectorRole, KVConnectorTransferResults,
                               KVConnectorWorkerMetadata, NewestBase, SupportsHMA, installed)

SIZE = 8 * BLOCK


@pytest.mark.parametrize("load", ["sync", "async"])
@pytest.mark.parametrize(("version", "oldest"), [("0.29.0", True), ("0.99.1", False)])
def test_s80_oldest_and_newest(arena_name, prompt, version, oldest, load):
    with installed(version, oldest) as module:
        made = [Engine(module.KvshmConnector, KVConnectorRole, {"name": arena_name, "load": load},
                       cached=False) for _ in range(2)]
        tokens = prompt(SIZE + 1)
        for one, expected in zip(made, (0, SIZE)):
            request = one.run(tokens, 5)
            assert request.external == expected
            assert request.output == one.model.generate(tokens, 5)
        assert hasattr(module.KvshmConnector, "_cache_hit_source") != oldest
        for one in made:
            one.shutdown()


def test_s80_more_arguments_than_today(engine, prompt):
    """vLLM's other model runner calls with more; a later release may."""
    a = engine()
    start = a.workers[0].start_load_kv
    a.workers[0].start_load_kv = lambda context: start(context, scheduler_output=1, request_ids=[])
    tokens = prompt(SIZE + 1)
    a.run(tokens, 1)
    for worker in a.workers:
        worker.wait_for_layer_load("g0.layers.0")
        worker.save_kv_layer("g0.layers.0", None, None, attention="x")
    assert a.stats["saved_blocks"] == 8


@pytest.mark.parametrize("windows", [(None, None), (None, 8), (8,)])
def test_s80_several_groups_need_a_way_to_tell(arena_name, windows):
    """0.29 cannot be told that a request's load failed, only of blocks."""
    with installed("0.29.0", oldest=True) as module:
        with pytest.raises(kvshm.Unsupported, match="0.32 or later"):
            Engine(module.KvshmConnector, KVConnectorRole, {"name": arena_name},
                   model=Model(windows))
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.Arena.attach(arena_name)


def test_stats_cross_processes(engine, module, prompt):
    from prometheus_client import CollectorRegistry, Counter, generate_latest

    a = engine()
    a.connector.get_kv_connector_stats()
    request = a.add(prompt(SIZE + 1), 1)
    output = a.schedule()
    results = a.execute(output)
    a.connector.update_connector_output(NS(kv_connector_worker_meta=results[0].worker_meta))
    stats = a.connector.get_kv_connector_stats()
    again = type(a.connector).build_kv_connector_stats(stats.to_dict())
    assert again.reduce()["blocks saved"] == 8 and not again.is_empty()
    assert again.aggregate(stats).data["saved_blocks"] == 16
    registry = CollectorRegistry()

    class Mine(Counter):
        def __init__(self, *args, **more):
            super().__init__(*args, registry=registry, **more)

    prom = type(a.connector).build_prom_metrics(None, {Counter: Mine}, ["engine"], {0: ["0"]})
    prom.observe(stats.data, 0)
    text = generate_latest(registry).decode()
    assert 'vllm:kvshm_saved_blocks_total{engine="0"} 8.0' in text
    a.abort(request)
    a.drain()


# ---- MultiConnector ----------------------------------------------------------------------------

class OtherMeta(KVConnectorMetadata):
    pass


class OtherWorkerMeta(KVConnectorWorkerMetadata):
    def aggregate(self, other):
        return self


class Other(NewestBase, SupportsHMA):
    """Such as NixlConnector: it has a handshake, holds blocks on to send them, and may have a hit
    that it says it loaded."""

    hit = 0

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []
        self._received = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.hit, self.hit > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.calls.append(num_external_tokens)
        if num_external_tokens:
            self._received.add(request.request_id)
            self.told = request.request_id

    def build_connector_meta(self, scheduler_output):
        return OtherMeta()

    def start_load_kv(self, forward_context, **kwargs): ...

    def wait_for_layer_load(self, layer_name): ...

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    def wait_for_save(self): ...

    def get_handshake_metadata(self):
        return "nixl"

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    def build_connector_worker_meta(self):
        return OtherWorkerMeta()


def multi(children):
    """vLLM's MultiConnector (0.32), as far as it passes calls on."""
    class Multi(NewestBase, SupportsHMA):
        def __init__(self, config, role, kv):
            super().__init__(config, role, kv)
            self.children = [child(config, role, kv) for child in children]
            self.chosen = {}

        def get_num_new_matched_tokens(self, request, num_computed_tokens):
            found = (0, False)
            for i, child in enumerate(self.children):
                tokens, later = child.get_num_new_matched_tokens(request, num_computed_tokens)
                if found[0] == 0 and tokens > 0:
                    self.chosen[request.request_id] = i
                    found = (tokens, later)
            return found

        def update_state_after_alloc(self, request, blocks, num_external_tokens):
            chosen = self.chosen.get(request.request_id, -1)
            for i, child in enumerate(self.children):
                child.update_state_after_alloc(request, blocks,
                                               num_external_tokens if i == chosen else 0)

        def build_connector_meta(self, scheduler_output):
            meta = MultiMeta()
            meta.metadata = tuple(c.build_connector_meta(scheduler_output) for c in self.children)
            return meta

        def bind_connector_metadata(self, connector_metadata):
            for child, meta in zip(self.children, connector_metadata.metadata):
                child.bind_connector_metadata(meta)

        def handle_preemptions(self, kv_connector_metadata):
            for child, meta in zip(self.children, kv_connector_metadata.metadata):
                child.handle_preemptions(meta)

        def update_connector_output(self, connector_output):
            whole = connector_output.kv_connector_worker_meta
            for i, child in enumerate(self.children):
                if whole is not None:
                    connector_output.kv_connector_worker_meta = whole.metadata[i]
                child.update_connector_output(connector_output)
            connector_output.kv_connector_worker_meta = whole

        def build_connector_worker_meta(self):
            metas = tuple(child.build_connector_worker_meta() for child in self.children)
            meta = MultiWorkerMeta()
            meta.metadata = metas
            return meta if any(one is not None for one in metas) else None

        def get_transfer_results(self, finished_req_ids):
            merged = KVConnectorTransferResults()
            for child in self.children:
                one = child.get_transfer_results(finished_req_ids)
                merged.finished_recving |= one.finished_recving
                merged.failed_recving |= one.failed_recving
                merged.finished_sending |= one.finished_sending
            return merged

        def get_block_ids_with_load_errors(self):
            return set().union(*(c.get_block_ids_with_load_errors() for c in self.children))

        def request_finished_all_groups(self, request, block_ids):
            self.chosen.pop(request.request_id, None)
            return any([c.request_finished_all_groups(request, block_ids)[0]
                        for c in self.children]), None

        def has_pending_push_work(self):
            return any(child.has_pending_push_work() for child in self.children)

        def reset_cache(self):
            return all([child.reset_cache() is not False for child in self.children])

        def get_handshake_metadata(self):
            return next((m for m in (c.get_handshake_metadata() for c in self.children)
                         if m is not None), None)

        start_load_kv = _each("start_load_kv")
        wait_for_layer_load = _each("wait_for_layer_load")
        save_kv_layer = _each("save_kv_layer")
        wait_for_save = _each("wait_for_save")
        register_kv_caches = _each("register_kv_caches")
        clear_connector_metadata = _each("clear_connector_metadata")
        on_new_request = _each("on_new_request")
        shutdown = _each("shutdown")

    return Multi


def _each(name):
    def call(self, *args, **kwargs):
        for child in self.children:
            getattr(child, name)(*args, **kwargs)
    return call


class MultiMeta(KVConnectorMetadata):
    metadata: tuple


class MultiWorkerMeta(KVConnectorWorkerMetadata):
    metadata: tuple

    def aggregate(self, other):
        merged = MultiWorkerMeta()
        merged.metadata = tuple(b if a is None else a if b is None else a.aggregate(b)
                                for a, b in zip(self.metadata, other.metadata))
        return merged


@pytest.mark.parametrize("first", [True, False], ids=["first child", "second child"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_child_of_multi_connector(engine, prompt, module, first, ranks):
    children = [module.KvshmConnector, Other] if first else [Other, module.KvshmConnector]
    model, tokens = Model(ranks=ranks), prompt(SIZE + 1)
    a, b = (engine(multi(children), model=model, cached=False) for _ in range(2))
    mine, other = b.connector.children if first else reversed(b.connector.children)
    a.run(tokens, 3)
    one = b.run(tokens, 3)
    assert one.external == SIZE and one.output == model.generate(tokens, 3)
    assert other.calls == [0]
    side = mine._scheduler
    assert not (side.loading or side.saving or side.states)
    assert mine.get_handshake_metadata() is None
    assert b.workers[0].get_handshake_metadata() == "nixl"
    idle = b.workers[0].children[0 if first else 1]
    assert idle.build_connector_worker_meta() is None
    # Metadata and reports of others pass it by.
    idle.bind_connector_metadata(OtherMeta())
    for call in (idle.wait_for_save, lambda: idle.start_load_kv(None),
                 lambda: idle.handle_preemptions(OtherMeta())):
        call()
    mine.update_connector_output(NS(kv_connector_worker_meta=OtherWorkerMeta()))
    assert not mine._told, "an error was swallowed"


def test_the_other_child_has_the_hit(engine, truth, prompt, module):
    """It gets the tokens; what kvshm held is given back at once, although blocks are real."""
    tokens = prompt(SIZE + 1)
    a = engine(cached=False)
    a.run(tokens, 1)
    b = engine(multi([Other, module.KvshmConnector]), cached=False)
    other, mine = b.connector.children
    other.hit = 4 * BLOCK
    one = b.add(tokens, 2)
    b.schedule()
    assert other.calls == [4 * BLOCK] and one.status == "remote"
    assert not mine._scheduler.loading and truth(a).held() == 0
    b._recved.add(one.request_id)
    b.cache.write(b.manager.ids(one.request_id), 0, b.model.values(tokens[:4 * BLOCK]))
    b.drain()
    assert one.output == b.model.generate(tokens, 2)
    kv = kv_cache_config(b.model, 4, BLOCK)
    assert len(kv.kv_cache_groups) == 1


def test_a_group_that_is_not_transferred_counts_for_vllm(engine):
    """It refuses block ids for any model with several groups, also where one is transferred."""
    from kvshm.connectors.vllm.groups import fails_by_request, groups_of

    a = engine()
    config = kv_cache_config(Model((None, None)), 4, BLOCK)
    config.kv_cache_groups[1].enable_kv_transfer = False
    groups = groups_of(config, BLOCK)
    assert len(groups) == 1 and fails_by_request(config, groups)
    assert not a.connector._scheduler.by_request
