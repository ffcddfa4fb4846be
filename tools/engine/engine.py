# SPDX-License-Identifier: Apache-2.0
"""Serving one request: reuse what is cached, prefill the rest chunk by chunk, decode greedily.

A chunk is one block on the grid of absolute positions, with and without reuse. So a token's KV is
always computed by the same products on operands of the same shape, and reuse changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .kv import PIECES, PREFILL, KVCache, KeyBytes, Registered, Sequence
from .model import Model


@dataclass
class Answer:
    tokens: list[int]
    logits: torch.Tensor  # (new tokens, vocabulary): what each was chosen from
    ttft: float  # seconds from the call to the first token
    reused: list[KeyBytes]
    chunks: list[tuple[int, int]]  # (start, tokens) of each prefill step


class Engine:
    def __init__(self, model: Model, cache: KVCache, reference: KVCache) -> None:
        """`reference` serves the requests that must not reuse anything."""
        self.model = model
        self.cache = cache
        self._reference = reference

    def generate(
        self,
        prompt: list[int],
        new_tokens: int,
        reuse: bool,
        registered: Registered,
        progress: Callable[[int], None],
    ) -> Answer:
        began = time.perf_counter()
        size = self.model.block_tokens
        cache = self.cache if reuse else self._reference
        sequence = cache.open(prompt, reuse, registered)
        try:
            logits, chunks = self._prefill(prompt, sequence, progress)
            position = len(prompt)
            tokens = [int(logits.argmax())]
            ttft = time.perf_counter() - began
            rows = [logits]
            while len(tokens) < new_tokens:
                if position % size == 0:
                    sequence.extend()
                logits = self.model.forward(tokens[-1:], position, sequence.blocks)
                position += 1
                if position % size == 0:
                    sequence.complete([*prompt, *tokens], PIECES)
                tokens.append(int(logits.argmax()))
                rows.append(logits)
            return Answer(tokens, torch.stack(rows), ttft, list(sequence.reused), chunks)
        finally:
            sequence.close()

    def _prefill(
        self, prompt: list[int], sequence: Sequence, progress: Callable[[int], None]
    ) -> tuple[torch.Tensor, list[tuple[int, int]]]:
        """The logits after the prompt, and the chunks that were computed."""
        logits = None
        while logits is None and sequence.arriving:
            chunks = self._chunks(prompt, sequence)
            logits = self._by_layers(prompt, chunks, sequence, progress)
        if logits is not None:
            return logits, chunks
        chunks = self._chunks(prompt, sequence)
        for start, step in chunks:
            end = start + step
            sequence.extend()
            progress(start)
            logits = self.model.forward(prompt[start:end], start, sequence.blocks)
            if step == self.model.block_tokens:
                sequence.complete(prompt[:end], PREFILL)
        assert logits is not None
        return logits, chunks

    def _chunks(self, prompt: list[int], sequence: Sequence) -> list[tuple[int, int]]:
        size = self.model.block_tokens
        return [(at, min(size, len(prompt) - at))
                for at in range(len(sequence.reused) * size, len(prompt), size)]

    def _by_layers(
        self, prompt: list[int], chunks: list[tuple[int, int]], sequence: Sequence,
        progress: Callable[[int], None]
    ) -> torch.Tensor | None:
        """All chunks through each layer as its KV of the found blocks arrives, the later layers'
        being on its way meanwhile. None: some did not come, see Sequence.arrived()."""
        found = len(sequence.reused)
        for _ in chunks:
            sequence.extend()
        states = [self.model.embed(prompt[start:start + step]) for start, step in chunks]
        for layer in range(self.model.config.layers):
            if not sequence.arrived(layer):
                return None
            for i, (start, _) in enumerate(chunks):
                if not layer:
                    progress(start)
                blocks = sequence.blocks[:found + i + 1]
                states[i] = self.model.through(states[i], start, blocks, range(layer, layer + 1))
        for start, step in chunks:
            if step == self.model.block_tokens:
                sequence.complete(prompt[:start + step], PREFILL)
        return self.model.logits(states[-1])
