# SPDX-License-Identifier: Apache-2.0
"""What the tests of sharing call in the engine's process: loads that fail, bytes that are lost,
checksums of what is saved and loaded."""
import ctypes
import hashlib
from typing import Any

import numpy as np


def scheduler(engine: Any) -> Any:
    return engine.engine_core.engine_core.scheduler.connector._scheduler


def worker(engine: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


def fail_block(engine: Any, index: int) -> None:
    """The next load does not bring the block of this index; the one after it is as ever."""
    side = worker(engine)
    pages = next(iter(side.pages.values()))
    transfers = side._transfers

    class Failing:
        slice_bytes = pages.slice_bytes

        def load(self, lease: Any, rows: Any, **where: Any) -> Any:
            transfers._pages[0] = pages
            codes = pages.load(lease, rows, **where)
            spoil(pages, rows[index:])
            codes[index] = -5
            return codes

    transfers._pages = {0: Failing()}


def zero_loads(engine: Any, on: bool) -> None:
    """What is loaded becomes zeros, and nobody is told."""
    side = worker(engine)

    class Zeroing:
        def __init__(self, pages: Any) -> None:
            self.pages, self.slice_bytes = pages, pages.slice_bytes

        def load(self, lease: Any, rows: Any, **where: Any) -> Any:
            codes = self.pages.load(lease, rows, **where)
            spoil(self.pages, rows)
            return codes

    side._transfers._pages = {
        group: Zeroing(pages) if on else pages for group, pages in side.pages.items()}


def spoil(pages: Any, rows: Any) -> None:
    for row in rows.tolist():
        for address, stride, count, _ in pages.runs:
            ctypes.memset(address + row * stride, 0, count)


def digest(pages: Any, row: int) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for address, stride, count, _ in pages.runs:
        whole.update(ctypes.string_at(address + row * stride, count))
    return whole.hexdigest()


_saved: dict[tuple[int, int], str] = {}
_wrong: list[str] = []
_checked = [0]


def watch_bytes(engine: Any) -> None:
    """From now on each block's checksum at its save is kept by its handle, and compared after each
    load of it."""
    side = worker(engine)
    pages = side.pages[0]

    class Watching:
        slice_bytes = pages.slice_bytes

        def store(self, fill: Any, rows: Any, **where: Any) -> Any:
            for handle, row in zip(fill.handles, rows.tolist()):
                _saved[tuple(handle)] = digest(pages, row)
            return pages.store(fill, rows, **where)

        def finish(self, fill: Any, **where: Any) -> Any:
            return pages.finish(fill, **where)

        def load(self, lease: Any, rows: Any, **where: Any) -> Any:
            codes = pages.load(lease, rows, **where)
            for handle, row in zip(lease.handles, rows.tolist()):
                _checked[0] += 1
                if _saved.get(tuple(handle)) != digest(pages, row):
                    _wrong.append(f"{handle} in row {row}")
            return codes

    side._transfers._pages = {0: Watching()}


def watched(engine: Any) -> dict[str, Any]:
    return {"saved": len(_saved), "checked": _checked[0], "wrong": _wrong}


def holds(engine: Any) -> dict[str, int]:
    """What the connector of this engine holds, and its jobs under way."""
    side = scheduler(engine)
    own = side.host.arena.stats(own=False)
    return {"held": own.blocks_held, "filling": own.blocks_filling, "loading": len(side.loading),
            "saving": len(side.saving), "states": len(side.states)}


def broken(engine: Any) -> list[str]:
    return [str(one) for one in scheduler(engine).host.arena.is_valid()]


def counted(engine: Any) -> dict[str, float]:
    """Statistics since the engine last took them."""
    return dict(scheduler(engine).stats.data)


def block_bytes(engine: Any, request_tokens: list[int]) -> list[str]:
    """Checksums of a prompt's full blocks as they lie in the arena, by vLLM's own hashes."""
    side = scheduler(engine)
    keys = keys_of(engine, request_tokens)
    with side.host.arena.match(keys) as lease:
        return [hashlib.blake2b(np.asarray(lease.view(i)), digest_size=16).hexdigest()
                for i in range(len(lease))]


def keys_of(engine: Any, tokens: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    core = engine.engine_core.engine_core
    request = Request("keys", tokens, SamplingParams(max_tokens=1), None,
                      block_hasher=core.request_block_hasher)
    return scheduler(engine).host.identity.keys_from_hashes(request.block_hashes)


_told: list[Any] = []


def hear_events(engine: Any) -> None:
    """Keeps what the engine would publish from now on."""
    publisher = engine.engine_core.engine_core.scheduler.kv_event_publisher
    publisher.publish = lambda batch: _told.extend(batch.events)


def heard(engine: Any, medium: str) -> list[dict[str, Any]]:
    """Events of one medium since the last call; hashes as text."""
    own = [one for one in _told if getattr(one, "medium", None) == medium]
    _told.clear()
    return [{"kind": type(one).__name__, "hashes": [str(value) for value in one.block_hashes],
             "parent": above and str(above),
             "tokens": getattr(one, "token_ids", None), "size": getattr(one, "block_size", None)}
            for one in own for above in [getattr(one, "parent_block_hash", None)]]
