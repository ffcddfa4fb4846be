# SPDX-License-Identifier: Apache-2.0
"""The engine's KV on a shared arena: found by others, read in place, awaited, given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import kvshm  # noqa: E402
from kvshm.tools.engine.config import TINY  # noqa: E402
from kvshm.tools.engine.engine import Answer, Engine  # noqa: E402
from kvshm.tools.engine.identity import identity_of  # noqa: E402
from kvshm.tools.engine.kv import OffCache, Registered  # noqa: E402
from kvshm.tools.engine.kv_arena import open_cache  # noqa: E402
from kvshm.tools.engine.model import Model  # noqa: E402
from kvshm.tools.engine.settings import COPY, IN_PLACE, Settings  # noqa: E402

BLOCK = 16
BYTES = TINY.block_bytes(BLOCK)
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:The given buffer is not")]


def nothing(*_: object) -> None:
    pass


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Site:
    """An arena, and engines on it that share one model but no attachment."""

    def __init__(self, name: str, model: Model, blocks: int) -> None:
        self.settings = Settings(IN_PLACE, True, 0, BLOCK, arena=name)
        self.arena = kvshm.Arena.create(
            name, blocks=blocks, block_bytes=BYTES, identity=identity_of(self.settings))
        self._model = model
        self._caches: list = []

    def engine(self, kv: str = IN_PLACE, wait: float = 20.0) -> Engine:
        cache = open_cache(replace(self.settings, kv=kv, wait_limit=wait), 1000.0)
        self._caches.append(cache)
        return Engine(self._model, cache, OffCache(TINY, BLOCK))

    def quiet(self) -> kvshm.Stats:
        """Statistics, once it is sure that nothing is held and nothing is wrong."""
        stats = self.arena.stats()
        assert stats.blocks_filling == stats.blocks_held == stats.blocks_evicting == 0
        assert not self.arena.is_valid()
        return stats

    def close(self) -> None:
        for cache in self._caches:
            cache.close()
        self.arena.close()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Model(TINY, BLOCK)
    torch.set_num_threads(threads)


@pytest.fixture
def site(arena_name: str, model: Model) -> Iterator[Site]:
    made = Site(arena_name, model, 64)
    yield made
    made.close()


@pytest.fixture
def small_site(arena_name: str, model: Model) -> Iterator[Site]:
    made = Site(arena_name, model, 8)
    yield made
    made.close()


def ask(engine: Engine, tokens: list[int], new: int = 4, reuse: bool = True,
        registered: Registered = nothing) -> Answer:
    return engine.generate(tokens, new, reuse, registered, nothing)


def same(a: Answer, b: Answer) -> bool:
    return a.tokens == b.tokens and torch.equal(a.logits, b.logits)


@pytest.mark.parametrize("kv", [IN_PLACE, COPY])
def test_another_engine_finds_the_blocks_and_computes_the_same_bits(site, kv):
    first, second = site.engine(kv), site.engine(kv)
    shared = prompt(100)
    ask(first, shared + prompt(20, 1), new=1)
    asked = shared + prompt(30, 2)
    warm = ask(second, asked)
    assert len(warm.reused) == 100 // BLOCK
    assert warm.chunks[0] == (96, BLOCK)
    assert same(warm, ask(second, asked, reuse=False))
    site.quiet()


def test_in_place_no_byte_is_copied(site):
    ask(site.engine(), prompt(100))
    ask(site.engine(), prompt(100))
    stats = site.quiet()
    assert stats.hits_total >= 6
    assert stats.copy_in_bytes_total == stats.copy_out_bytes_total == 0


def test_copying_counts_each_block_once_each_way(site):
    first, second = site.engine(COPY), site.engine(COPY)
    ask(first, prompt(100), new=1)
    for _ in range(3):  # later ones find it in the engine's own memory
        ask(second, prompt(100), new=1)
    stats = site.quiet()
    assert stats.copy_in_bytes_total == first.cache.counts.copied_in == 6 * BYTES
    assert stats.copy_out_bytes_total == second.cache.counts.copied_out == 6 * BYTES


def test_the_bytes_in_the_arena_are_the_kv(site, model):
    """Not a copy beside it: what is written there changes the next answer."""
    engine = site.engine()
    tokens = prompt(60)
    before = ask(engine, tokens)
    keys = site.arena.identity.keys(tokens)
    with site.arena.match(keys[1:2]) as lease:
        torch.frombuffer(lease.view(0), dtype=torch.float32).neg_()
    after = ask(site.engine(), tokens)
    assert (after.logits[0] - before.logits[0]).abs().max() > 1e-2


def test_decoding_fills_blocks_that_others_find(site):
    made: list[str] = []
    answer = ask(site.engine(), prompt(40), new=30, registered=lambda k, p, how: made.append(how))
    assert made == ["prefill", "prefill", "pieces", "pieces"]  # 69 tokens have KV
    follow_up = [*prompt(40), *answer.tokens, *prompt(9, 3)]
    warm = ask(site.engine(), follow_up)
    assert len(warm.reused) == 4
    cold = ask(site.engine(), follow_up, reuse=False)
    assert (warm.logits[0] - cold.logits[0]).abs().max() <= 1e-4


def test_blocks_that_another_engine_computes_are_awaited(site):
    slow, waiting = site.engine(), site.engine()
    tokens = prompt(65)
    sequence = slow.cache.open(tokens, True, nothing)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(waiting, tokens)))
    thread.start()
    for position in range(0, 64, BLOCK):
        time.sleep(0.05)
        sequence.extend()
        slow.model.forward(tokens[position : position + BLOCK], position, sequence.blocks)
        sequence.complete(tokens[: position + BLOCK], "prefill")
    thread.join(30)
    sequence.close()
    (answer,) = answers
    assert waiting.cache.counts.waited > 0
    assert len(answer.reused) == 4
    assert same(answer, ask(waiting, tokens, reuse=False))
    assert site.quiet().duplicates_total == 0


def test_blocks_that_another_engine_gives_up_are_computed(site):
    faint, waiting = site.engine(), site.engine()
    tokens = prompt(65)
    sequence = faint.cache.open(tokens, True, nothing)
    threading.Timer(0.2, sequence.close).start()
    answer = ask(waiting, tokens)
    assert answer.reused == []
    assert same(answer, ask(waiting, tokens, reuse=False))
    stats = site.quiet()
    # The first block may be given up while the others are still announced: what is then computed
    # beside them is a duplicate without primary.
    assert stats.registered_total + stats.duplicates_total == 4


def test_waiting_has_a_limit(site):
    stuck, waiting = site.engine(), site.engine(wait=0.3)
    tokens = prompt(65)
    sequence = stuck.cache.open(tokens, True, nothing)
    began = time.monotonic()
    answer = ask(waiting, tokens)
    assert 0.3 <= time.monotonic() - began < 10
    assert same(answer, ask(waiting, tokens, reuse=False))
    sequence.close()
    site.quiet()


def test_without_space_the_request_is_served_from_private_memory(small_site):
    engine = small_site.engine()
    tokens = prompt(100)
    with small_site.arena.allocate(5):  # three blocks are left for six
        answer = ask(engine, tokens)
        assert engine.cache.counts.private > 0
        assert same(answer, ask(engine, tokens, reuse=False))
    again = ask(small_site.engine(), tokens)
    assert len(again.reused) == 3
    assert same(again, answer)
    small_site.quiet()


def test_evicted_blocks_are_computed_again(small_site):
    engine = small_site.engine()
    first = ask(engine, prompt(100))
    for seed in range(1, 6):
        ask(engine, prompt(100, seed))
    again = ask(engine, prompt(100))
    assert small_site.quiet().evicted_total > 0
    assert same(again, first)


def test_an_engine_with_other_weights_is_refused(site):
    with pytest.raises(kvshm.IdentityMismatch):
        open_cache(replace(site.settings, seed=1), 1.0)


def test_an_error_in_a_request_gives_its_blocks_back(site, monkeypatch):
    engine = site.engine()
    monkeypatch.setattr(engine.model, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(engine, prompt(100))
    assert site.quiet().blocks_free == 64
