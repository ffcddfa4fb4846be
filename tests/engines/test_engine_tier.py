# SPDX-License-Identifier: Apache-2.0
"""The engine with a tier below its arena: whole blocks and layer groups, computed while they load;
what fails is computed; what waits in line is brought ahead of its turn."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import kvshm  # noqa: E402
from kvshm.layerwise import LayerKeys, LayerwiseLoad  # noqa: E402
from kvshm.tools.engine.config import model_config  # noqa: E402
from kvshm.tools.engine.engine import Answer, Engine  # noqa: E402
from kvshm.tools.engine.identity import identity_of  # noqa: E402
from kvshm.tools.engine.kv import OffCache  # noqa: E402
from kvshm.tools.engine.kv_arena import open_cache  # noqa: E402
from kvshm.tools.engine.model import Model  # noqa: E402
from kvshm.tools.engine.settings import COPY, ENQUEUE, IN_PLACE, Settings  # noqa: E402
from kvshm.tools.engine.worker import Worker  # noqa: E402

BLOCK, LAYERS = 16, 4
SLOTS = 256
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:The given buffer is not")]


def nothing(*_: object) -> None:
    pass


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Site:
    """An arena with a tier, and engines on it that share one model but no attachment."""

    def __init__(self, name: str, model: Model, folder: Path, groups: int, **more: object) -> None:
        self.path = folder / "tier"
        self.settings = Settings(
            IN_PLACE, True, 0, BLOCK, arena=name, layers=LAYERS, layer_groups=groups,
            tier=(str(self.path),), tier_size="4MiB", tier_wait=20.0, **more)
        self.arena = kvshm.Arena.create(
            name, blocks=64 * groups, block_bytes=self.settings.part_bytes,
            identity=identity_of(self.settings), tier=self.path, tier_size="4MiB",
            tier_options={"write": self.settings.tier_write})
        self._model = model
        self._caches: list = []

    def cache(self, **change: object):
        self._caches.append(open_cache(replace(self.settings, **change), 1000.0))
        return self._caches[-1]

    def engine(self, kv: str = IN_PLACE, **change: object) -> Engine:
        return Engine(self._model, self.cache(kv=kv, **change),
                      OffCache(self.settings.model, BLOCK))

    def keys(self, tokens: list[int]) -> list:
        """Of its full blocks, by layer group."""
        layers = LayerKeys(self.arena.identity, self.settings.layer_groups)
        return layers.every(self.arena.identity.keys(tokens))

    def on_disk(self, tokens: list[int]) -> bool:
        return all((self.arena.presence(own) & kvshm.Presence.G3).all()
                   for own in self.keys(tokens))

    def down(self, tokens: list[int]) -> None:
        """All its blocks are on disk, and there alone."""
        every, limit = self.keys(tokens), time.monotonic() + 20
        while not self.on_disk(tokens):
            assert time.monotonic() < limit
            time.sleep(0.01)
        for own in every:
            self.arena.evict(own)
            assert (self.arena.presence(own) == kvshm.Presence.G3).all()

    def damage(self, key: bytes) -> None:
        """A byte of this part, where it lies in the file."""
        with self.arena.match([key], load=True) as lease:
            assert lease.wait(10) and len(lease) == 1
            data = bytes(lease.view(0)[:])
        assert self.arena.evict([key]) == 1
        at = self.path.read_bytes().find(data)
        assert at >= 0
        with open(self.path, "r+b") as file:
            file.seek(at + 5)
            file.write(bytes([data[5] ^ 255]))
            os.fsync(file.fileno())

    def quiet(self) -> kvshm.Stats:
        """Statistics, once what is still being written down is."""
        limit = time.monotonic() + 20
        while True:
            stats = self.arena.stats()
            if stats.blocks_filling == stats.blocks_held == stats.blocks_evicting == 0:
                break
            assert time.monotonic() < limit, stats
            time.sleep(0.01)
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
    yield Model(replace(model_config(True, 0), layers=LAYERS), BLOCK)
    torch.set_num_threads(threads)


@pytest.fixture(params=[1, 2, 4])
def site(request, arena_name: str, model: Model, tmp_path: Path) -> Iterator[Site]:
    made = Site(arena_name, model, tmp_path, request.param)
    yield made
    made.close()


def ask(engine: Engine, tokens: list[int], new: int = 4, reuse: bool = True) -> Answer:
    return engine.generate(tokens, new, reuse, nothing, nothing)


def same(a: Answer, b: Answer) -> bool:
    return a.tokens == b.tokens and torch.equal(a.logits, b.logits)


@pytest.mark.parametrize("kv", [IN_PLACE, COPY])
def test_what_lies_on_disk_is_loaded_and_gives_the_same_bits(site, kv):
    ask(site.engine(kv), prompt(100), new=1)
    site.down(prompt(100)[:96])
    asked = prompt(100) + prompt(50, 1)
    engine = site.engine(kv)
    warm = ask(engine, asked)
    assert len(warm.reused) == 100 // BLOCK and warm.chunks[0] == (96, BLOCK)
    assert engine.cache.counts.loaded == 6 and engine.cache.counts.missed == 0
    assert same(warm, ask(engine, asked, reuse=False))
    again = ask(site.engine(kv), asked)  # what was computed beside the load is there for others
    assert len(again.reused) == 149 // BLOCK and same(again, warm)
    site.quiet()


@pytest.mark.parametrize("kv", [IN_PLACE, COPY])
def test_a_part_that_fails_is_computed_from_its_block_on(site, kv):
    ask(site.engine(kv), prompt(100), new=1)
    site.down(prompt(100)[:96])
    every = site.keys(prompt(100)[:96])
    site.damage(every[-1][3])  # of the last layers: the others have arrived by then
    engine = site.engine(kv)
    warm = ask(engine, prompt(100))
    assert len(warm.reused) == 3 and warm.chunks[0] == (48, BLOCK)
    assert engine.cache.counts.missed == 3
    assert same(warm, ask(engine, prompt(100), reuse=False))
    assert site.quiet().tier_damaged_total == 1
    assert len(ask(site.engine(kv), prompt(100)).reused) == 6  # and is there again


def test_layers_are_computed_while_later_ones_load(arena_name, model, tmp_path, monkeypatch):
    """The first group's layers are through before the last group is asked after."""
    site = Site(arena_name, model, tmp_path, 4)
    try:
        ask(site.engine(), prompt(100), new=1)
        site.down(prompt(100)[:96])
        order: list[str] = []
        wait, through = LayerwiseLoad.wait, Model.through

        def waited(self: LayerwiseLoad, group: int, timeout: float) -> int:
            order.append(f"wait {group}")
            return wait(self, group, timeout)

        def computed(self: Model, x, start, blocks, layers):
            order.append(f"layer {layers.start}")
            return through(self, x, start, blocks, layers)

        monkeypatch.setattr(LayerwiseLoad, "wait", waited)
        monkeypatch.setattr(Model, "through", computed)
        ask(site.engine(), prompt(100), new=1)
        assert order == ["wait 0", "layer 0", "wait 1", "layer 1", "wait 2", "layer 2", "wait 3",
                         "layer 3"]
    finally:
        site.close()


def test_other_ways_of_splitting_do_not_meet(site, arena_name):
    other = 1 if site.settings.layer_groups == 2 else 2
    with pytest.raises(kvshm.Error):
        open_cache(replace(site.settings, layer_groups=other), 1.0)


@pytest.mark.parametrize("groups", [0, 3, 8])
def test_groups_that_do_not_divide_the_layers(groups):
    with pytest.raises(ValueError, match="4 layers"):
        Settings(IN_PLACE, True, 0, BLOCK, layers=LAYERS, layer_groups=groups)


@pytest.mark.parametrize("kv", [IN_PLACE, COPY])
def test_a_request_in_line_is_brought_into_memory_before_its_turn(site, kv):
    tokens = prompt(100)
    ask(site.engine(kv), tokens, new=1)
    site.down(prompt(100)[:96])
    cache = site.cache(kv=kv, prefetch=ENQUEUE)
    cache.enqueued(1, tokens)
    limit = time.monotonic() + 20
    while not all((site.arena.presence(own) & kvshm.Presence.G2).all() for own in site.keys(
            prompt(100)[:96])):
        assert time.monotonic() < limit
        time.sleep(0.01)
    cache.begun(1)
    assert cache.counts.prefetched == 6 * site.settings.layer_groups
    sequence = cache.open(tokens, True, nothing)
    assert not sequence.arriving and len(sequence.reused) == 6
    sequence.close()
    site.quiet()


def test_no_more_than_prefetch_ahead(site):
    tokens = prompt(100)
    ask(site.engine(), tokens, new=1)
    site.down(prompt(100)[:96])
    cache = site.cache(prefetch=ENQUEUE, prefetch_ahead=2)
    cache.enqueued(1, tokens)
    assert cache.counts.prefetched == 2 * site.settings.layer_groups
    cache.begun(1)


def test_a_worker_asks_for_its_whole_line_first(arena_name, model, tmp_path):
    """Both requests lie in its input when it starts: by the time of the first answer the second
    one's blocks were asked for."""
    site = Site(arena_name, model, tmp_path, 2, prefetch=ENQUEUE)
    try:
        first, second = prompt(100), prompt(100, 7)
        for tokens in (first, second):
            ask(site.engine(), tokens, new=1)
            site.down(tokens[:96])
        line = "".join(json.dumps({"op": "generate", "id": i, "tokens": tokens, "new": 2,
                                   "reuse": True}) + "\n"
                       for i, tokens in enumerate((first, second)))
        output = io.StringIO()
        Worker(site.settings, output).serve(io.StringIO(line))
        done = [one for one in map(json.loads, output.getvalue().splitlines())
                if one["event"] == "done"]
        assert [len(one["reused"]) for one in done] == [6, 6]
        assert done[-1]["counts"]["prefetched"] == 24
        site.quiet()
    finally:
        site.close()


def test_a_worker_without_requests_lets_what_was_gathered_go_down(arena_name, model, tmp_path):
    """tier_write="idle", its input open: once each time that its line has become empty."""
    site = Site(arena_name, model, tmp_path, 2, tier_write="idle")
    read, write = os.pipe()
    output = io.StringIO()
    try:
        worker = Worker(site.settings, output)
        with open(read) as source, open(write, "w") as asks:
            serving = threading.Thread(target=worker.serve, args=(source,))
            serving.start()
            ask(site.engine(), prompt(100), new=1)
            time.sleep(0.5)
            assert not site.on_disk(prompt(100)[:16])  # it idles since before
            asks.write(json.dumps({"op": "generate", "id": 1, "tokens": prompt(100, 7), "new": 2,
                                   "reuse": True}) + "\n")
            asks.flush()
            site.down(prompt(100, 7)[:96])
            assert site.on_disk(prompt(100)[:96]), "it was gathered by then, too"
            asks.write(json.dumps({"op": "stop"}) + "\n")
        serving.join(20)
        assert not serving.is_alive()
    finally:
        site.close()
