# SPDX-License-Identifier: Apache-2.0
"""What of a mock request lies in the arena, and whether its bytes are right."""
from __future__ import annotations

from typing import Any

import kvshm
import numpy as np

from support.mock_model import Cache
from support.mock_pool import Request

METADATA = 2_527_232 - 288  # bytes of an arena beside its blocks; from the error that says so


def arena_size(blocks: int, block_bytes: int = 128) -> int:
    """For the option size: an arena of at least `blocks` blocks, hardly more."""
    return METADATA + blocks * (block_bytes + 160)


class Truth:
    """Looks from outside, by an attachment of its own. Closed by the fixture that made it."""

    def __init__(self, engine: Any, name: str) -> None:
        from kvshm.connectors.vllm.groups import groups_of
        from kvshm.paged import runs_of

        from support.mock_engine import kv_cache_config

        model = engine.model
        self.model, self.size = model, engine.block_tokens
        self.arena = kvshm.Arena.attach(name, helper=False)
        self.identity = engine.connector._scheduler.host.identity
        self.groups = groups_of(kv_cache_config(model, 2, self.size), self.size)
        self._scratch = Cache(model, 2, self.size)
        self._pages = [[runs_of({n: self._scratch.tensors(rank)[n] for n in group.layers}, 2)
                        for group in self.groups] for rank in range(model.ranks)]

    def keys(self, request: Request) -> list[Any]:
        from kvshm.connectors.vllm.adapters import adapter_digest
        from kvshm.connectors.vllm.keys import GroupKeys

        identity = self.identity.with_epoch(self.arena.epoch)
        own = [GroupKeys(identity, group, len(self.groups) > 1,
                         adapter_digest(request.lora_request)) for group in self.groups]
        for one in own:
            one.extend(request.block_hashes)
        return own

    def visible(self, request: Request) -> list[list[int]]:
        """By group, the blocks of a request that are READY. An assertion fails for wrong bytes."""
        values = self.model.values(request.all_token_ids, request.adapter)
        found = []
        for place, keys in enumerate(self.keys(request)):
            mine = []
            for i in range(len(keys)):
                with self.arena.match(keys[i:i + 1], touch=False) as lease:
                    if len(lease):
                        self._compare(lease, place, values[:, i * self.size:(i + 1) * self.size],
                                      f"{request.request_id}: block {i} of group {place}")
                        mine.append(i)
            found.append(mine)
        return found

    def _compare(self, lease: Any, group: int, expected: np.ndarray, what: str) -> None:
        for rank, pages in enumerate(self._pages):
            assert (pages[group].load(lease, np.array([1], np.uint32), part=rank) == 0).all()
        for lane, want in zip(self.model.lanes, expected):
            if lane.group == group:
                name = self.model.layer_name(lane.group, lane.layer)
                got = self._scratch.arrays[lane.rank][name][1, lane.head, :, 0]
                assert (got == want).all(), f"wrong bytes: {what}, {lane}"

    def held(self) -> int:
        stats = self.arena.stats()
        return stats.blocks_held + stats.blocks_filling + stats.blocks_evicting

    def close(self) -> None:
        self.arena.close()
