# SPDX-License-Identifier: Apache-2.0
"""What test_offloading.py calls in the engine's process."""
from __future__ import annotations

from typing import Any

from kvshm.connectors.vllm.transfers import HostTransfers


def manager(engine: Any) -> Any:
    return engine.engine_core.engine_core.scheduler.connector.scheduler.manager


def settled(engine: Any) -> dict[str, int]:
    """What the manager still keeps when no request is in flight, after the steps that end jobs."""
    of = manager(engine)
    return {"requests": len(of._asked), "stores": len(of.stores), "retired": len(of._retired)}


def blocks(engine: Any) -> dict[str, int]:
    arena = manager(engine).host.arena
    stats = arena.stats()
    return {"kept": stats.blocks_inactive, "held": stats.blocks_held,
            "filling": stats.blocks_filling, "broken": len(arena.is_valid())}


def zero_what_is_loaded(engine: Any) -> None:
    """From now on a load writes zeros over the blocks that it has copied."""
    import ctypes

    own = HostTransfers._load

    def load(self: Any, pages: Any, handles: Any, rows: Any) -> Any:
        codes = own(self, pages, handles, rows)
        for address, stride, nbytes, _ in pages.runs:
            for row in rows.tolist():
                ctypes.memset(address + row * stride, 0, nbytes)
        return codes

    HostTransfers._load = load  # type: ignore[method-assign]


def life_of_a_hold(engine: Any) -> dict[str, Any]:
    """Four blocks of a made-up request: stored, looked up, loaded; after each step how many of them
    somebody else can evict."""
    from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext, make_offload_key

    of = manager(engine)
    arena = of.host.arena
    names = [make_offload_key(bytes([i]) * 32, 0) for i in range(4)]

    def arrive(request_id: str) -> Any:
        context = ReqContext(request_id)
        of.on_new_request(context)
        for i, name in enumerate(names):
            context.set_offload_key_position(name, 32 * (i + 1))
        return context

    def look(context: Any) -> list[str]:
        return [of.lookup(name, context).name for name in names]

    first = arrive("first")
    made = of.prepare_store(names, first)
    told: dict[str, Any] = {"while stored": look(first)}
    with arena.join(made.store_spec.handles) as fill:
        for i in range(len(fill)):
            fill.begin(i, 0)
            fill.arrive(i, 0)
        fill.publish().release()
    of.complete_store(set(names), first)
    of.on_request_finished(first)
    told["again"] = of.prepare_store(names, arrive("again")).keys_to_store
    keys = of._asked["again"].chains[0].keys
    second, third = arrive("second"), arrive("third")
    told["looked up"] = look(second), look(third), arena.evict(keys)
    of.on_request_finished(third)
    spec = of.prepare_load(names[1:3], second)
    told["prepared"] = len(spec.handles), arena.evict(keys)  # the last one is not loaded
    of.on_request_finished(second)
    with arena.pin(spec.handles) as lease:
        told["finished"] = len(lease), arena.evict(keys)
    of.complete_load(set(names[1:3]), second)
    fourth = arrive("fourth")
    told["loaded"] = look(fourth)
    of.on_schedule_end(ScheduleEndContext({"fourth"}, ()))  # it runs without
    told["let go"] = arena.evict(keys)
    told["evicted"] = look(fourth)
    for context in (fourth, ReqContext("again")):
        of.on_request_finished(context)
    return told


def refusals(engine: Any) -> dict[str, str]:
    """What a connector that is made with something else says."""
    import copy
    from dataclasses import replace
    from unittest import mock

    import kvshm
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
        OffloadingConnector,
    )

    from kvshm.connectors.vllm import offloading, version

    core = engine.engine_core.engine_core.scheduler
    said = {}

    def make(extra: dict[str, Any], **changed: Any) -> None:
        config = copy.copy(engine.vllm_config)
        transfer = config.kv_transfer_config
        config.kv_transfer_config = replace(
            transfer, kv_connector_extra_config={**transfer.kv_connector_extra_config, **extra})
        for name, value in changed.items():
            setattr(config, name, value)
        OffloadingConnector(config, KVConnectorRole.SCHEDULER, core.kv_cache_config)

    def note(what: str, attempt: Any) -> None:
        try:
            attempt()
        except kvshm.Error as error:
            said[what] = str(error)

    for name, value in (("blocks_per_chunk", 2), ("canonical_layout", True), ("prioritty", 3)):
        note(name, lambda: make({name: value}))
    note("lora", lambda: make({}, lora_config=object()))
    with mock.patch.object(version, "installed", lambda: "0.31.4"):
        note("version", offloading.check)
    note("no engine", lambda: offloading.KvshmOffloadingSpec(core.connector.scheduler))
    return said


def jobs_that_fail(engine: Any) -> dict[int, bool]:
    """What the worker tells vLLM of them; a False of vLLM's asserts ends the engine."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.v1.kv_offload.base import GPULoadStoreSpec

    from kvshm.connectors.vllm.offloading.records import ArenaBlocks

    host = manager(engine).host
    with host.arena.allocate(2, keys=[b"%016d" % i for i in range(2)]) as fill:
        gone = ArenaBlocks(host.ref, fill.handle_array)
    two = GPULoadStoreSpec([1, 2], group_sizes=[2], block_indices=[0])
    one = GPULoadStoreSpec([1], group_sizes=[1], block_indices=[0])
    worker = get_kv_transfer_group().connector_worker.worker
    worker.submit_store(-1, two, gone)
    worker.submit_store(-2, one, gone)  # two blocks of the arena for one of the engine's
    worker.submit_load(-3, gone, two)
    worker.submit_load(-4, gone, one)
    worker.wait({-1, -2, -3, -4})
    return {one.job_id: one.success for one in worker.get_finished()}
