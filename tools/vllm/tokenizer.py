# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json for the small models: one token a byte, and names for the ids above."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN, END = 256, 257


def alphabet() -> list[str]:
    """The character that byte-level tokenizers write for each byte (as GPT-2 does)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    words = [*alphabet(), "<begin>", "<end>", *(f"<{i}>" for i in range(END + 1, vocabulary))]
    mark = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}
    every: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": words[i], **mark} for i in (BEGIN, END)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False},
            {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated",
             "invert": False},
        ]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": False},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)},
                  "unk_token": "<end>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(every), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<begin>",
        "eos_token": "<end>", "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 20}), encoding="utf-8")
