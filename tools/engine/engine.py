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

from .kv import PIECES, PREFILL, KVCache, KeyBytes, Registered
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
            position = len(sequence.reused) * size
            chunks: list[tuple[int, int]] = []
            logits = torch.empty(0)
            while position < len(prompt):
                step = min(size, len(prompt) - position)
                sequence.extend()
                progress(position)
                logits = self.model.forward(
                    prompt[position : position + step], position, sequence.blocks
                )
                chunks.append((position, step))
                position += step
                if step == size:
                    sequence.complete(prompt[:position], PREFILL)
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
