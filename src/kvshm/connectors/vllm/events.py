# SPDX-License-Identifier: Apache-2.0
"""KV events in vLLM's format, from the engine that stored: it has the tokens.

Off unless events=True and the engine publishes events at all. A block is told when its bytes are
in the arena; what this engine's own stores pushed out is told as removed, if this engine had
stored it (what other processes evict is not seen here).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .groups import Group
from .saves import Save

MEDIUM = "CPU"
REMEMBERED = 1 << 20  # keys whose hash is kept for a removal


class Events:
    """Threads: the scheduler's only."""

    def __init__(self, several_groups: bool) -> None:
        self._several = several_groups
        self._waiting: list[KVCacheEvent] = []
        self._hashes: OrderedDict[bytes, tuple[int, Any]] = OrderedDict()

    def stored(self, save: Save, group: Group, blocks: list[int]) -> None:
        """blocks: indices of the request's blocks that are READY now, ascending."""
        request = save.state.request
        hashes, size, per = request.block_hashes, group.block_tokens, group.hashes
        lora = request.lora_request
        for run in _runs(blocks):
            own = [maybe_convert_block_hash(hashes[(i + 1) * per - 1]) for i in run]
            above = maybe_convert_block_hash(hashes[run[0] * per - 1]) if run[0] else None
            self._waiting.append(BlockStored(
                block_hashes=own, parent_block_hash=above,
                token_ids=list(request.all_token_ids[run[0] * size:(run[-1] + 1) * size]),
                block_size=size, lora_id=lora.adapter_id if lora else None, medium=MEDIUM,
                lora_name=lora.name if lora else None,
                group_idx=group.index if self._several else None))
            keys = save.state.keys[save.group]
            for i, one in zip(run, own):
                self._hashes[bytes(keys[i:i + 1].tobytes())] = (group.index, one)
        while len(self._hashes) > REMEMBERED:
            self._hashes.popitem(last=False)

    def evicted(self, keys: Any) -> None:
        """keys: (n, 16) uint8, as Fill.evicted gives them."""
        by_group: dict[int, list[Any]] = {}
        for key in keys:
            found = self._hashes.pop(key.tobytes(), None)
            if found is not None:
                by_group.setdefault(found[0], []).append(found[1])
        for group, hashes in by_group.items():
            self._waiting.append(BlockRemoved(
                block_hashes=hashes, medium=MEDIUM,
                group_idx=group if self._several else None))

    def take(self) -> list[KVCacheEvent]:
        waiting, self._waiting = self._waiting, []
        return waiting


def _runs(blocks: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
