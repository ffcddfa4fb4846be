# SPDX-License-Identifier: Apache-2.0
"""Requests and the KV cache manager of the mock engine: hashes, block tables, prefix cache."""
from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from types import SimpleNamespace as NS
from typing import Any


class Request:
    """late: block hashes appear so many steps after their tokens, as with async scheduling."""

    def __init__(self, request_id: str, prompt: Sequence[int], max_tokens: int = 1, *,
                 hash_tokens: int, salt: str = "", lora: Any = None, late: int = 0) -> None:
        self.request_id, self.lora_request, self.late = request_id, lora, late
        self.all_token_ids = list(prompt)
        self.num_prompt_tokens, self.max_tokens = len(self.all_token_ids), max_tokens
        self.num_computed_tokens = 0
        self.skip_reading_prefix_cache = False
        self.cache_salt = salt or None
        self.status = "waiting"  # remote, running, preempted, finished
        self.admitted = False
        self.cached = 0  # tokens found at the first admission, anywhere
        self.external = 0
        self.placeholders = 0  # tokens that steps in flight will bring
        self.in_flight = 0  # steps
        self.dropped = 0  # of these, those whose output counts no more
        self.restart = False  # the worker's copy of the tokens is not right
        self.preemptions = 0
        self.block_hashes: list[bytes] = []
        self._hash_tokens, self._salt = hash_tokens, salt
        self._lengths = [self.num_tokens] * (late + 1)
        self.hash_more()

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def output(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens:]

    @property
    def adapter(self) -> int:
        return self.lora_request.lora_int_id if self.lora_request else 0

    def hash_more(self) -> None:
        """Once a step: hashes of what is full by now, or was `late` steps ago."""
        self._lengths.append(self.num_tokens)
        known = self._lengths[-1 - self.late]
        size, hashes = self._hash_tokens, self.block_hashes
        while (len(hashes) + 1) * size <= known:
            tokens = self.all_token_ids[len(hashes) * size:(len(hashes) + 1) * size]
            extra = [] if self.lora_request is None else [
                self.lora_request.lora_name, self.lora_request.lora_path]
            if not hashes and self._salt:
                extra.append(self._salt)
            above = hashes[-1] if hashes else b"vllm-none-hash"
            hashes.append(hashlib.sha256(repr((above, tokens, extra)).encode()).digest())


class Blocks:
    """vLLM's KVCacheBlocks, as far as a connector sees them."""

    def __init__(self, tables: Sequence[Sequence[int]]) -> None:
        self._ids = tuple(list(table) for table in tables)

    def get_block_ids(self) -> tuple[list[int], ...]:
        return self._ids


class Manager:
    """Block 0 is the null block. Groups share the pool; a block is of one group at a time."""

    def __init__(self, blocks: int, block_tokens: int, windows: Sequence[int | None]) -> None:
        self.size, self.windows = block_tokens, windows
        self.free = OrderedDict.fromkeys(range(1, blocks))  # the next to be used is the first
        self.total = blocks - 1
        self.references = [0] * blocks
        self.tables: dict[str, list[list[int]]] = {}
        self.cached: dict[tuple[bytes, int], int] = {}
        self._hash_of: dict[int, tuple[bytes, int]] = {}
        self._done: dict[str, list[int]] = {}

    # ---- prefix cache --------------------------------------------------------------------------

    def local_hit(self, request: Request) -> tuple[list[list[int]], int]:
        """Block tables of the longest prefix that all groups have what they need of."""
        hashes = request.block_hashes
        boundary = min((request.num_tokens - 1) // self.size, len(hashes))
        while boundary:
            tables = []
            for group in range(len(self.windows)):
                first = self._first_needed(group, boundary * self.size)
                if any((hashes[i], group) not in self.cached for i in range(first, boundary)):
                    break
                tables.append([0] * first + [
                    self.cached[hashes[i], group] for i in range(first, boundary)])
            else:
                return tables, boundary * self.size
            boundary -= 1
        return [[] for _ in self.windows], 0

    def _first_needed(self, group: int, tokens: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, tokens - window + 1) // self.size

    def cache(self, request: Request, tokens: int) -> None:
        """The full blocks of the first `tokens` tokens can be found from now on."""
        full = min(tokens // self.size, len(request.block_hashes))
        for group, table in enumerate(self.tables[request.request_id]):
            done = self._done[request.request_id]
            for i in range(done[group], full):
                block, key = table[i], (request.block_hashes[i], group)
                if block and block not in self._hash_of and key not in self.cached:
                    self.cached[key] = block
                    self._hash_of[block] = key
            done[group] = max(done[group], full)

    def reset(self) -> None:
        for block in list(self._hash_of):
            self._forget(block)

    def _forget(self, block: int) -> None:
        key = self._hash_of.pop(block, None)
        if key is not None and self.cached.get(key) == block:
            del self.cached[key]

    # ---- allocation ----------------------------------------------------------------------------

    def blocks_for(self, request: Request, tokens: int, computed: int) -> int:
        """How many more a request needs for `tokens` tokens."""
        table = self.tables.get(request.request_id)
        wanted = -(-tokens // self.size)
        return sum(max(0, wanted - max(len(table[g]) if table else 0,
                                       self._first_needed(g, computed)))
                   for g in range(len(self.windows)))

    def allocate(self, request: Request, computed: int, new: int, *,
                 local: list[list[int]] | None = None, delay: bool = False,
                 reserved: int = 0, whole: bool = False) -> list[list[int]] | None:
        """Room for `new` tokens behind `computed`; the new blocks by group, None without room.
        local: block tables of the request's local hit, when it is admitted."""
        name = request.request_id
        if local is None:
            self._leave_window(name, computed)
        wanted = -(-(computed + new) // self.size)
        tables = self.tables.get(name) or [[] for _ in self.windows]
        have = [len(t) for t in tables] if local is None else [len(t) for t in local]
        need = [max(0, wanted - max(n, self._first_needed(g, computed)))
                for g, n in enumerate(have)]
        idle = {b for table in local or () for b in table if b and not self.references[b]}
        enough = sum(need)
        if whole:
            full = -(-request.num_tokens // self.size)
            enough = max(enough, sum(
                max(0, full - max(n, self._first_needed(g, computed)))
                for g, n in enumerate(have)))
        if enough + reserved > len(self.free) - len(idle):
            return None
        if local is not None:
            assert name not in self.tables
            self.tables[name] = tables = [list(table) for table in local]
            self._done[name] = [len(table) for table in local]
            for block in (b for table in local for b in table if b):
                self.free.pop(block, None)
                self.references[block] += 1
        given = []
        for group, table in enumerate(tables):
            table += [0] * max(0, min(wanted, self._first_needed(group, computed)) - len(table))
            new_ones = [self._take() for _ in range(need[group])]
            table += new_ones
            given.append(new_ones)
        if local is not None:
            self._leave_window(name, computed)
        if not delay:
            self.cache(request, min(computed + new, request.num_tokens))
        return given

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        self._forget(block)
        self.references[block] = 1
        return block

    def _leave_window(self, name: str, computed: int) -> None:
        for group, table in enumerate(self.tables.get(name, ())):
            for i in range(min(self._first_needed(group, computed), len(table))):
                if table[i]:
                    self._drop(table[i])
                    table[i] = 0

    def _drop(self, block: int) -> None:
        self.references[block] -= 1
        assert self.references[block] >= 0
        if not self.references[block]:
            self.free[block] = None

    def release(self, request: Request) -> None:
        for table in self.tables.pop(request.request_id, ()):
            for block in reversed(table):
                if block:
                    self._drop(block)
        self._done.pop(request.request_id, None)

    def ids(self, name: str) -> tuple[list[int], ...]:
        return tuple(list(table) for table in self.tables.get(name, ()))


def lora(number: int, path: str = "/nowhere") -> Any:
    return NS(lora_name=f"lora{number}", lora_int_id=number, lora_path=path, load_inplace=False,
              name=f"lora{number}", adapter_id=number)
