# SPDX-License-Identifier: Apache-2.0
"""An engine that calls a KV connector in the order of vLLM's scheduler and model runner (0.32),
with the mock model. One process; every rank is an object. No GPU, no threads of its own."""
from __future__ import annotations

import copy
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace as NS
from typing import Any

import numpy as np

from support.mock_model import HEADS, Cache, Model
from support.mock_pool import Blocks, Manager, Request

BLOCK = 4  # tokens


class FullAttentionSpec:
    def __init__(self, block_size: int, page: int, window: int | None = None) -> None:
        self.block_size, self.page_size_bytes, self.dtype = block_size, page, "uint64"
        self.prefix_cacheable = True
        self.sliding_window = window


class SlidingWindowSpec(FullAttentionSpec):
    pass


def kv_cache_config(model: Model, blocks: int, block_tokens: int) -> Any:
    page = HEADS * block_tokens * 8
    groups = []
    for group, window in enumerate(model.windows):
        kind = FullAttentionSpec if window is None else SlidingWindowSpec
        groups.append(NS(
            layer_names=[model.layer_name(group, n) for n in range(model.layers)],
            kv_cache_spec=kind(block_tokens, page, window), enable_kv_transfer=True,
            host_resident=False))
    return NS(kv_cache_groups=groups, num_blocks=blocks, hash_block_size=block_tokens,
              kv_cache_layout=NS(name="LBHNC"))


def vllm_config(options: dict[str, Any], block_tokens: int, ranks: int, weights: str,
                engine_id: str = "e", policy: str = "recompute") -> Any:
    return NS(
        model_config=NS(
            model="org/mock", revision=None, dtype="uint64", quantization=None,
            quantization_config=None, hf_overrides={}, model_class_overrides={},
            disable_sliding_window=False, code_revision=None, config_format="auto",
            multimodal_config=None, model_weights="", seed=0),
        cache_config=NS(cache_dtype="auto", block_size=block_tokens,
                        prefix_caching_hash_algo="sha256", kv_cache_dtype_skip_layers=[]),
        parallel_config=NS(pipeline_parallel_size=1, prefill_context_parallel_size=1,
                           decode_context_parallel_size=1, nnodes_within_dp=1,
                           tensor_parallel_size=ranks, world_size=ranks, rank=0),
        load_config=NS(load_format="auto", download_dir=None), speculative_config=None,
        device_config=NS(device_type="cpu"),
        kv_transfer_config=NS(
            kv_connector_extra_config={"weights": weights, "pin": "off", "huge": "off",
                                       "size": "3MiB", **options},
            engine_id=engine_id, kv_load_failure_policy=policy))


def for_rank(config: Any, rank: int) -> Any:
    one = copy.copy(config)
    one.parallel_config = copy.copy(config.parallel_config)
    one.parallel_config.rank = rank
    return one


class Engine:
    """make: the connector's class, or a function of its arguments. depth: steps in flight.
    lookahead: tokens that are scheduled beyond the known ones, all refused (speculation)."""

    def __init__(self, make: Callable[..., Any], roles: Any, options: dict[str, Any], *,
                 model: Model | None = None, blocks: int = 64, block_tokens: int = BLOCK,
                 budget: int = 64, most_running: int = 8, depth: int = 1, lookahead: int = 0,
                 late: int = 0, cached: bool = True, policy: str = "recompute") -> None:
        self.model = model = model or Model()
        self.block_tokens, self.budget, self.most_running = block_tokens, budget, most_running
        self.depth, self.lookahead, self.late, self.use_local = depth, lookahead, late, cached
        self.policy = policy
        self.manager = Manager(blocks, block_tokens, model.windows)
        self.cache = Cache(model, blocks, block_tokens)
        config = vllm_config(options, block_tokens, model.ranks, f"{model.seed}", policy=policy)
        kv = kv_cache_config(model, blocks, block_tokens)
        self.connector = make(config, roles.SCHEDULER, kv)
        self.workers = [make(for_rank(config, r), roles.WORKER, kv) for r in range(model.ranks)]
        for rank, worker in enumerate(self.workers):
            worker.register_kv_caches(self.cache.tensors(rank))
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.done: dict[str, Request] = {}
        self.flying: deque[tuple[Any, Any]] = deque()
        self.received: list[str] = []  # every finished_recving, in order
        self.failures: list[Any] = []  # what was reported as not loaded, by step
        self.stats: dict[str, float] = {}
        self._recved: set[str] = set()
        self._load_failed: set[str] = set()
        self._finished: set[str] = set()
        self._prefills: set[str] = set()
        self._counts: dict[str, int] = {}
        self._pending_failed: set[str] = set()
        self._device: dict[str, list[int]] = {}
        self._number = 0
        self.before_metadata: Callable[[Any], None] = lambda output: None

    # ---- what a client does --------------------------------------------------------------------

    def add(self, prompt: Sequence[int], max_tokens: int = 1, request_id: str = "",
            **more: Any) -> Request:
        self._number += 1
        request = Request(request_id or f"r{self._number}", prompt, max_tokens,
                          hash_tokens=self.block_tokens, late=self.late, **more)
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.connector.on_new_request(request)
        return request

    def abort(self, request: Request) -> None:
        if request.status == "finished":
            return
        name = request.request_id
        delay = request.status == "remote" and name not in self._recved
        if request.status == "remote":
            self._recved.discard(name)
            self._load_failed.discard(name)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, delay)

    def preempt(self, request: Request) -> None:
        """Between two steps; it is admitted again after all that wait."""
        self._preempt(request, NS(num_scheduled_tokens={}, preempted_req_ids=set()))
        self.waiting.rotate(-1)

    def run(self, prompt: Sequence[int], max_tokens: int = 1, **more: Any) -> Request:
        request = self.add(prompt, max_tokens, **more)
        self.drain()
        return request

    def drain(self, limit: int = 2000) -> None:
        """Until nothing is left to do: as vLLM's busy loop, which asks has_requests()."""
        for _ in range(limit):
            if not (self.requests or self._finished or self.flying
                    or self.connector.has_pending_push_work()):
                return
            self.step()
        raise AssertionError(f"not at rest: {list(self.requests)}")

    def reset_prefix_cache(self, connector: bool = True) -> bool:
        self.manager.reset()
        return self.connector.reset_cache() is not False if connector else True

    def shutdown(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.connector.shutdown()

    # ---- a step --------------------------------------------------------------------------------

    def step(self) -> None:
        output = self.schedule()
        if not output.num_scheduled_tokens and self.requests:
            time.sleep(0.001)  # as vLLM's busy loop does where nothing can run
        self.flying.append((output, self.execute(output)))
        while self.flying and (len(self.flying) >= self.depth or not output.num_scheduled_tokens):
            self.update(*self.flying.popleft())

    def schedule(self) -> Any:
        budget = self.budget
        output = NS(scheduled_new_reqs=[], num_scheduled_tokens={}, finished_req_ids=self._finished,
                    has_sync_kv_loads=False, restarts={}, preempted_req_ids=set(),
                    scheduled_cached_reqs=NS(req_ids=[], new_block_ids=[], resumed_req_ids=set()))
        self._finished = set()
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            new = request.num_tokens + request.placeholders - request.num_computed_tokens
            if request.placeholders and request.num_tokens + request.placeholders >= (
                    request.num_prompt_tokens + request.max_tokens):
                new = 0  # the steps in flight bring the last token
            if new == 1 and self.lookahead and not request.placeholders:
                new += self.lookahead
            new = min(new, budget)
            if new <= 0:
                index += 1
                continue
            given = None
            while request in self.running:
                given = self.manager.allocate(request, request.num_computed_tokens, new)
                if given is not None:
                    break
                self._preempt(self.running[-1], output)
            if given is None:
                break
            output.num_scheduled_tokens[request.request_id] = new
            output.scheduled_cached_reqs.req_ids.append(request.request_id)
            output.scheduled_cached_reqs.new_block_ids.append(
                tuple(given) if any(given) else None)
            budget -= new
            index += 1
        if not output.preempted_req_ids:
            self._admit(budget, output)
        self._connector_step(output)
        return output

    def _admit(self, budget: int, output: Any) -> None:
        skipped: list[Request] = []
        # Who holds blocks comes first, or nobody might ever have room.
        self.waiting = deque(sorted(
            self.waiting, key=lambda one: one.request_id not in self.manager.tables))
        while self.waiting and budget > 0 and len(self.running) < self.most_running:
            request = self.waiting[0]
            name = request.request_id
            if request.status == "remote" and not self._promoted(request) or (
                    request.in_flight and request.status == "preempted"):
                skipped.append(self.waiting.popleft())
                continue
            local, computed, external, later = None, request.num_computed_tokens, 0, False
            if computed == 0:
                self.manager.release(request)
                local, hit = self.manager.local_hit(request) if self.use_local else (
                    [[] for _ in self.model.windows], 0)
                found, later = self.connector.get_num_new_matched_tokens(request, hit)
                if found is None:
                    skipped.append(self.waiting.popleft())
                    continue
                external, computed = found, hit + found
                assert computed <= request.num_tokens and found % self.block_tokens == 0
            new = 0 if later else min(request.num_tokens - computed, budget)
            assert later or new > 0
            reserved = sum(self.manager.blocks_for(one, one.num_tokens, one.num_computed_tokens)
                           for n, one in self.requests.items() if n in self._prefills and n != name)
            given = self.manager.allocate(request, computed, new, local=local, delay=later,
                                          reserved=reserved, whole=True)
            if given is None:
                break
            self.connector.update_state_after_alloc(
                request, Blocks(self.manager.tables[name]), external)
            if local is not None and not request.admitted:
                request.admitted = True
                request.cached, request.external = computed, external
            request.num_computed_tokens = computed
            if later:
                assert external > 0
                request.status = "remote"
                self._prefills.add(name)
                skipped.append(self.waiting.popleft())
                continue
            self.waiting.popleft()
            self.running.append(request)
            output.has_sync_kv_loads |= external > 0
            tables = self.manager.ids(name)
            if request.preemptions:
                output.scheduled_cached_reqs.req_ids.append(name)
                output.scheduled_cached_reqs.new_block_ids.append(tables)
                output.scheduled_cached_reqs.resumed_req_ids.add(name)
            else:
                output.scheduled_new_reqs.append(NS(req_id=name, block_ids=tables))
            request.status, request.restart = "running", True
            output.num_scheduled_tokens[name] = new
            budget -= new
            if computed + new < request.num_tokens:
                self._prefills.add(name)
        self.waiting.extendleft(reversed(skipped))

    def _promoted(self, request: Request) -> bool:
        """Whether the asynchronous load of a request has ended; it goes on from there."""
        name = request.request_id
        if name not in self._recved:
            return False
        self._recved.remove(name)
        if name in self._load_failed:
            self._load_failed.remove(name)
            if not request.num_computed_tokens:
                self.manager.release(request)
                self._prefills.discard(name)
        if request.num_computed_tokens:
            self.manager.cache(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = "preempted" if request.preemptions else "waiting"
        return True

    def _connector_step(self, output: Any) -> None:
        names = set(output.num_scheduled_tokens)
        output.kv_connector_block_state = NS(
            get_block_ids=lambda name: self.manager.ids(name) if name in names else None)
        if not hasattr(self.connector, "get_transfer_results"):  # before 0.32
            cached = output.scheduled_cached_reqs
            given = {one.req_id for one in output.scheduled_new_reqs} | {
                name for name, new in zip(cached.req_ids, cached.new_block_ids) if new}
            output.kv_connector_block_state = NS(
                block_ids={name: self.manager.ids(name) for name in given})
        self.before_metadata(output)
        meta = self.connector.build_connector_meta(output)
        output.kv_connector_metadata = pickle.loads(pickle.dumps(meta))
        output.kv_connector_block_state = None
        for name, new in output.num_scheduled_tokens.items():
            request = self.requests[name]
            if request.restart:
                output.restarts[name] = (list(request.all_token_ids), request.adapter)
                request.restart = False
            # What a step gets is fixed when it is scheduled.
            output.num_scheduled_tokens[name] = new
            request.in_flight += 1
            request.num_computed_tokens += new
            if request.num_computed_tokens >= request.num_tokens + request.placeholders:
                request.placeholders += 1
                self._prefills.discard(name)
        output.positions = {name: (self.requests[name].num_computed_tokens - new, new,
                                   self.manager.ids(name))
                            for name, new in output.num_scheduled_tokens.items()}

    def _preempt(self, request: Request, output: Any) -> None:
        self.running.remove(request)
        output.num_scheduled_tokens.pop(request.request_id, None)
        output.preempted_req_ids.add(request.request_id)
        self.manager.release(request)
        self._prefills.discard(request.request_id)
        request.status, request.num_computed_tokens, request.placeholders = "preempted", 0, 0
        request.preemptions += 1
        self.waiting.appendleft(request)

    # ---- the workers ---------------------------------------------------------------------------

    def execute(self, output: Any) -> list[Any]:
        """What every rank reports; sampled tokens are in the first."""
        meta, results = output.kv_connector_metadata, []
        for worker in self.workers:
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            if output.has_sync_kv_loads:
                worker.start_load_kv(None)
        sampled = self._forward(output)
        for worker in self.workers:
            if not output.has_sync_kv_loads:
                worker.start_load_kv(None)
            worker.wait_for_save()
            results.append(report_of(worker, output.finished_req_ids))
            worker.clear_connector_metadata()
        results[0].sampled = sampled
        return results

    def _forward(self, output: Any) -> dict[str, int]:
        sampled = {}
        for name, (tokens, adapter) in output.restarts.items():
            self._device[name] = list(tokens)
        for name, (first, new, tables) in output.positions.items():
            tokens = self._device[name]
            request = self.requests.get(name)
            adapter = request.adapter if request else 0
            chunk = tokens[first:first + new]
            guesses = [7] * (new - len(chunk))
            values, token = self.model.compute(self.cache.read(tables, first), chunk, first,
                                               adapter)
            if guesses:  # what a draft proposed: written, and refused
                junk = np.full((len(values), len(guesses)), 0xBAD, np.uint64)
                values = np.concatenate([values, junk], axis=1)
            self.cache.write(tables, first, values)
            if first + new >= len(tokens):
                sampled[name] = token
                tokens.append(token)
        return sampled

    # ---- what comes back -----------------------------------------------------------------------

    def update(self, output: Any, results: list[Any]) -> None:
        merged = self._aggregate(results)
        failed = self._failed(output, merged)
        for name, new in output.num_scheduled_tokens.items():
            request = self.requests.get(name)
            if request is None:
                continue
            request.in_flight -= 1
            if name in failed or request.status == "finished":
                continue
            if request.dropped:
                request.dropped -= 1
                continue
            if name not in merged.sampled:
                continue
            if request.status == "running":
                request.placeholders -= 1
                refused = request.num_computed_tokens - request.num_tokens - request.placeholders
                request.num_computed_tokens -= max(0, refused)
            request.all_token_ids.append(merged.sampled[name])
            if len(request.output) >= request.max_tokens:
                (self.running if request in self.running else self.waiting).remove(request)
                self._finish(request)
        for request in self.requests.values():
            request.hash_more()
        self._connector_output(merged)

    def _failed(self, output: Any, merged: Any) -> set[str]:
        """Requests whose step counts for nothing, since they computed upon what was not loaded."""
        if merged.failed_recving or merged.invalid_block_ids:
            self.failures.append((set(merged.failed_recving), set(merged.invalid_block_ids)))
        for name in merged.failed_recving:
            request = self.requests.get(name)
            if request is not None and request.status == "remote":
                request.num_computed_tokens = 0
                self._load_failed.add(name)
        if not merged.invalid_block_ids:
            return set()
        assert len(self.model.windows) == 1, "block ids mean nothing with several groups"
        later = [one for one in self.waiting if one.status == "remote"]
        self._load_failed |= self._cut(later, merged.invalid_block_ids, {})
        failed = self._cut(self.running, merged.invalid_block_ids, output.num_scheduled_tokens)
        for name in failed:
            request = self.requests[name]
            request.placeholders, request.restart = 0, True
            request.dropped = max(0, request.in_flight - (name in output.num_scheduled_tokens))
        return failed

    def _cut(self, requests: Iterable[Request], invalid: set[int],
             scheduled: dict[str, int]) -> set[str]:
        affected, marked = set(), set()
        for request in requests:
            (table,) = self.manager.ids(request.request_id)
            computed = request.num_computed_tokens - scheduled.get(request.request_id, 0)
            hit = own = False
            for i, block in zip(range(-(-computed // self.block_tokens)), table):
                if block not in invalid:
                    continue
                hit = True
                if block in marked:
                    continue
                marked.add(block)
                if not own:
                    own = True
                    request.num_computed_tokens = i * self.block_tokens
            if hit:
                if not own:
                    request.num_computed_tokens = computed
                affected.add(request.request_id)
        return affected

    def _aggregate(self, results: list[Any]) -> Any:
        merged = NS(finished_recving=set(), failed_recving=set(), invalid_block_ids=set(),
                    kv_connector_worker_meta=None, sampled=results[0].sampled)
        for one in results:
            for name in one.finished_recving:
                left = self._counts.get(name, len(self.workers)) - 1
                self._counts[name] = left
                if not left:
                    merged.finished_recving.add(name)
                    del self._counts[name]
            merged.invalid_block_ids |= one.invalid_block_ids
            self._pending_failed |= one.failed_recving
            if merged.kv_connector_worker_meta is None:
                merged.kv_connector_worker_meta = one.worker_meta
            elif one.worker_meta is not None:
                merged.kv_connector_worker_meta = merged.kv_connector_worker_meta.aggregate(
                    one.worker_meta)
        merged.failed_recving = self._pending_failed & merged.finished_recving
        self._pending_failed -= merged.failed_recving
        return merged

    def _connector_output(self, merged: Any) -> None:
        self.connector.update_connector_output(merged)
        for name in sorted(merged.finished_recving):
            request = self.requests[name]  # EngineCore asserts that it is there
            self.received.append(name)
            if request.status == "remote":
                assert name not in self._recved
                self._recved.add(name)
            else:
                assert request.status == "finished"
                self._release(request)
        stats = self.connector.get_kv_connector_stats()
        for field, amount in (stats.data if stats is not None else {}).items():
            if isinstance(amount, (int, float)):
                self.stats[field] = self.stats.get(field, 0) + amount

    def _finish(self, request: Request, delay: bool = False) -> None:
        request.status = "finished"
        name = request.request_id
        self.done[name] = request
        self._prefills.discard(name)
        tables = self.manager.ids(name) or tuple([] for _ in self.model.windows)
        keep, _ = self.connector.request_finished_all_groups(request, tables)
        self._finished.add(name)
        if not (delay or keep):
            self._release(request)

    def _release(self, request: Request) -> None:
        self.manager.release(request)
        del self.requests[request.request_id]


def report_of(worker: Any, finished: set[str]) -> Any:
    """What a worker says at the end of a step, in the order in which vLLM's runner asks."""
    if hasattr(worker, "get_transfer_results"):
        results = worker.get_transfer_results(finished)
        received, failed = results.finished_recving, results.failed_recving
    else:  # before 0.32
        _, received = worker.get_finished(finished)
        received, failed = received or set(), set()
    bad = worker.get_block_ids_with_load_errors()
    worker.get_kv_connector_stats()
    worker.get_kv_connector_kv_cache_events()
    meta = worker.build_connector_worker_meta()
    return NS(finished_recving=set(received), failed_recving=set(failed), invalid_block_ids=bad,
              worker_meta=pickle.loads(pickle.dumps(meta)), sampled={})
