# SPDX-License-Identifier: Apache-2.0
"""Ranks of the mock engine as processes: each has the connector's worker side, and its KV tensors
in a file that the engine's process maps, too."""
from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.mock_model import Cache

RANK = """
import base64, pickle, random, sys, time
import numpy as np
from support.mock_engine import report_of
from support.mock_model import Tensor
from support.mock_transfers import Script
from support.mock_vllm import KVConnectorRole, installed
import pytest

def send(value):
    say(base64.b64encode(pickle.dumps(value)).decode())

with installed() as module, pytest.MonkeyPatch.context() as patch:
    config, kv, path, shapes, failing, seed = pickle.loads(base64.b64decode(hear()))
    chance = random.Random(seed)
    if failing:
        script = Script().install(patch, module)
        script.bad_loads = lambda rank, job: [
            i for i in range(64) if chance.random() < failing]
    worker = module.KvshmConnector(config, KVConnectorRole.WORKER, kv)
    memory = np.memmap(path, np.uint64, "r+")
    tensors, at = {}, 0
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        tensors[name] = Tensor(np.asarray(memory[at:at + n]).reshape(shape))
        at += n
    worker.register_kv_caches(tensors)
    send("ready")
    while True:
        what, value = pickle.loads(base64.b64decode(hear()))
        if what == "begin":
            time.sleep(chance.random() * 0.002)
            meta, now = value
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            if now:
                worker.start_load_kv(None)
            send(None)
        elif what == "end":
            finished, later = value
            if later:
                worker.start_load_kv(None)
            worker.wait_for_save()
            report = report_of(worker, finished)
            worker.clear_connector_metadata()
            send(report)
        else:
            worker.shutdown()
            send(None)
            break
"""


class RemoteRank:
    """A worker's connector in another process, as Engine uses one."""

    def __init__(self, process: Any, setup: Any) -> None:
        self._process, self._waits, self._now = process, 0, False
        self._meta: Any = None
        self._send(setup)
        assert self.join() == "ready"

    def _send(self, value: Any) -> None:
        self._process.say(base64.b64encode(pickle.dumps(value)).decode())
        self._waits += 1

    def join(self) -> Any:
        """Until it has done what it was told; its last answer."""
        answer = None
        while self._waits:
            self._waits -= 1
            answer = pickle.loads(base64.b64decode(self._process.hear()))
        return answer

    def handle_preemptions(self, meta: Any) -> None:
        self._meta = meta

    def bind_connector_metadata(self, meta: Any) -> None:
        self._now = False

    def start_load_kv(self, context: Any) -> None:
        self._now = True
        self._send(("begin", (self._meta, True)))

    def begin(self, now: bool) -> None:
        if not now:
            self._send(("begin", (self._meta, False)))

    def finish(self, finished: set[str], later: bool) -> None:
        self._send(("end", (finished, later)))

    def shutdown(self) -> None:
        self._send(("stop", None))
        self.join()


def remote(engine: Any, start: Callable[..., Any], folder: Path, kv: Any, configs: list[Any],
           failing: dict[int, float]) -> None:
    """Turns the ranks of an engine that has computed nothing yet into processes.

    failing: by rank, how likely it is that a block is not loaded."""
    cache: Cache = engine.cache
    workers = []
    for rank, arrays in enumerate(cache.arrays):
        engine.workers[rank].shutdown()
        path = folder / f"rank{rank}"
        shapes = {name: array.shape for name, array in arrays.items()}
        total = sum(array.size for array in arrays.values())
        memory = np.memmap(path, np.uint64, "w+", shape=(total,))
        at = 0
        for name, shape in shapes.items():
            n = int(np.prod(shape))
            arrays[name] = np.asarray(memory[at:at + n]).reshape(shape)
            at += n
        workers.append(RemoteRank(start(RANK), (configs[rank], kv, str(path), shapes,
                                                failing.get(rank, 0), rank)))
    engine.workers = workers

    def execute(output: Any) -> list[Any]:
        now = output.has_sync_kv_loads
        for worker in workers:
            worker.handle_preemptions(output.kv_connector_metadata)
            worker.start_load_kv(None) if now else worker.begin(False)
        for worker in workers:
            worker.join()
        sampled = engine._forward(output)
        for worker in workers:
            worker.finish(output.finished_req_ids, not now)
        results = [worker.join() for worker in workers]
        results[0].sampled = sampled
        return results

    engine.execute = execute
