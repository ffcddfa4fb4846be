# SPDX-License-Identifier: Apache-2.0
"""A process with the demo's engine: a prompt whose beginning lies on disk, by layer groups."""

from __future__ import annotations

import time

import numpy as np

import kvshm
from kvshm.layerwise import LayerKeys, LayerwiseLoad

from .side import Facts, serve

LIMIT = 120.0


def layers(args: dict[str, str]) -> None:
    import torch

    from ...engine.engine import Engine
    from ...engine.identity import identity_of
    from ...engine.kv import OffCache
    from ...engine.kv_arena import InPlaceCache, Shared
    from ...engine.model import Model
    from ...engine.settings import IN_PLACE, Settings

    torch.set_num_threads(1)
    tiny, n, new = args["tiny"] == "1", int(args["found"]), int(args["computed"])
    size = int(args["tokens"])
    settings = Settings(
        IN_PLACE, tiny, 0, size, arena=args["name"], layers=int(args["layers"]),
        layer_groups=int(args["groups"]), tier=(args["file"],), tier_wait=LIMIT)
    ident, parts = identity_of(settings), settings.layer_groups
    model = Model(settings.model, size)
    random = np.random.default_rng(11)
    begin = random.integers(0, 256, n * size, np.uint32)
    every = LayerKeys(ident, parts).every(ident.keys(begin))
    room = (n + new + 4) * parts
    slot = -(-settings.part_bytes // 4096) * 4096
    with kvshm.Arena.create(
            settings.arena, blocks=room, block_bytes=settings.part_bytes, identity=ident,
            pin="off", tier=args["file"], tier_size=(n * parts + 64) * (slot + 64) + (1 << 20)
    ) as arena:
        for own in every:
            with arena.allocate(n, keys=own) as fill:
                for i in range(n):
                    values = random.standard_normal(settings.part_bytes // 4, np.float32)
                    fill.copy_in(i, values)
                fill.register().release()
        if not arena.tier_drain(LIMIT):
            raise SystemExit("the tier is not written")
        # What is computed is not written: it would share the disk with what is loaded.
        reading = kvshm.Arena.attach(settings.arena, identity=ident, pin="off", tier=args["file"],
                                     tier_options={"write": "off"})
    shared = Shared(reading, settings, 1000.0)
    engine = Engine(model, InPlaceCache(shared), OffCache(settings.model, size))

    def prefill(there: bool) -> Facts:
        """Behind the found blocks, other tokens each time; layer by layer also if all is there."""
        tokens = [*begin.tolist(), *random.integers(0, 256, new * size).tolist()]
        began = time.perf_counter()
        sequence = engine.cache.open(tokens, True, lambda *_: None)
        try:
            found = len(sequence.reused)
            if not there and not sequence.arriving:
                raise SystemExit("nothing had to be loaded")
            sequence.arriving = True
            engine._prefill(tokens, sequence, lambda _: None)
            seconds = time.perf_counter() - began
            if not len(sequence.reused) == found == n:
                raise SystemExit(f"{len(sequence.reused)} of {n} blocks found")
        finally:
            sequence.close()
        return {"seconds": seconds}

    def evict() -> None:
        for own in every:
            reading.evict(own)

    def load(_: float) -> Facts:
        evict()
        began = time.perf_counter()
        with LayerwiseLoad(reading, every) as come:
            for group in range(parts):
                if come.wait(group, LIMIT) != n:
                    raise SystemExit(f"{come.blocks} of {n} blocks came")
            return {"seconds": time.perf_counter() - began}

    def compute(_: float) -> Facts:
        with LayerwiseLoad(reading, every) as come:
            for group in range(parts):
                come.wait(group, LIMIT)
            return prefill(True)

    def both(_: float) -> Facts:
        evict()
        return prefill(False)

    serve({"load": load, "compute": compute, "both": both},
          {"bytes": n * parts * settings.part_bytes})
