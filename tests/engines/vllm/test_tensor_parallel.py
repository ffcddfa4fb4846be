# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks: a block of the arena holds both ranks' slices, or it is not found."""
from __future__ import annotations

import os
import signal

from kvshm.tools.vllm.client import Request
from kvshm.tools.vllm.group import members
from kvshm.tools.vllm.options import kvshm_connector
from support import PREFIX

from .halting import Halts, halting_connector
from .watching import one, prompt, until, watch

NAME = f"{PREFIX}tp"
CONFIG = {"name": NAME, "size": "64MiB"}
SLICE = 4 * 1 * 32 * 128 * 2  # bytes of a rank: layers, KV heads, tokens, K and V, bfloat16


def test_two_ranks_share_and_a_rank_killed_in_mid_save_leaves_no_hole(new_engine, tmp_path):
    halts = Halts(tmp_path)
    shape = {"tensor_parallel": 2, "max_num_batched_tokens": 256, "wait": False}
    a = new_engine(label="a", connector=halting_connector(CONFIG), env=halts.env, **shape)
    b = new_engine(label="b", connector=kvshm_connector(CONFIG), **shape)
    a.ready()
    b.ready()
    with watch(NAME) as seen:
        assert seen.arena.block_bytes == 2 * SLICE
        first, second = Request(prompt(1), 16), Request(prompt(2), 16)
        cold = one(a, first)
        assert cold.num_cached_tokens == 0 and len(set(cold.tokens)) >= 8
        own, warm = one(a, first), one(b, first)
        assert own.num_cached_tokens == warm.num_cached_tokens == 992
        assert warm.tokens == own.tokens
        # The second behind 96 tokens of its own cache: the split that b will have in the end.
        one(a, Request(second.prompt_token_ids[:96] + prompt(3, 904), 16))
        split = one(a, second)
        assert split.num_cached_tokens == 96
        good = seen.digests()
        assert len(good) == 31 + 31 + 28 and seen.is_clean()

        # Once more from nothing; the third chunk is saved in parts.
        assert seen.arena.clear() == len(good)
        assert a.reset_prefix_cache() and b.reset_prefix_cache()
        halts.order("save", after=3, part=1)
        begun = a.begin([second])
        killed = halts.wait()
        assert killed != a.pid and len(seen.of(killed)) == 1
        found = seen.digests()
        assert found.items() <= good.items() and len(found) == 3
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: killed not in members(a.pid), 30.0)
        assert until(lambda: not seen.of(killed), 2.0)
        found = seen.digests()
        assert found.items() <= good.items() and len(found) == 3
        a.kill()
        assert until(lambda: seen.in_use() == (0, 0), 2.0)
        found = seen.digests()
        assert found.items() <= good.items() and len(found) == 3
        assert seen.is_clean()

        warm = one(b, second)
        assert warm.num_cached_tokens == 96 and warm.tokens == split.tokens
        assert len(seen.digests()) == 31 and seen.in_use() == (0, 0) and seen.is_clean()
        assert not begun.done() or begun.exception()
