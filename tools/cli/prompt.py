# SPDX-License-Identifier: Apache-2.0
"""From a prompt to the keys of its blocks, as the engine that made them derives them."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..inspector.view import Array, View
from .failures import USAGE, Failure


def tokens_of(data: bytes, name: str, tokenizer: str | None) -> list[int]:
    """Ids as they stand in the file, or of the text that it is."""
    if tokenizer is not None:
        return tokenizer_at(tokenizer)(text_of(data, name))
    found = re.sub(rb"[\s,\[\]]+", b" ", data).split()
    if not found or not all(re.fullmatch(rb"\d{1,10}", one) for one in found):
        raise Failure(USAGE, "", f"{name}: no tokens", "wanted ids, as a JSON list or one a word; "
                      "of text, --tokenizer DIR")
    return [int(one) for one in found]


def text_of(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failure(USAGE, "", f"{name}: no text in UTF-8") from None


def tokenizer_at(tokenizer: str) -> Callable[[str], list[int]]:
    """Text to ids, by a model's folder or a tokenizer.json."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Failure(USAGE, "", "--tokenizer needs the package tokenizers",
                      "pip install tokenizers") from None
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        made = Tokenizer.from_file(str(path))
    except Exception as e:  # it raises plain Exception
        raise Failure(USAGE, "", f"{path}: {e}", "wanted a tokenizer.json") from None
    return lambda text: list(made.encode(text).ids)


def key_maker(view: View,
              identity: dict[str, Any] | None) -> Callable[[list[int], str | None], Array]:
    """Tokens and a salt to keys, maybe none, under an identity as Identity.text has it; needs the
    library. By vLLM's block hashes where the identity is that of a vLLM engine, else as
    Identity.keys does."""
    import kvshm
    from kvshm.connectors.vllm import hashes

    if identity is None:
        raise Failure(USAGE, view.name, "it has no identity to derive keys under",
                      "--identity JSON, or --keys FILE")
    wrong = (kvshm.InvalidArgument, kvshm.Unsupported, TypeError)
    try:
        made = kvshm.Identity(**identity, allow_unknown_weights=True)
    except wrong as e:
        raise Failure(USAGE, view.name, str(e)) from None
    plain = json.loads(made.text)

    def keys(tokens: list[int], salt: str | None) -> Array:
        try:
            found: Array = (hashes.prompt_keys(plain, tokens, salt) if hashes.made_by_vllm(plain)
                            else made.keys(tokens, salt=salt))
        except wrong as e:
            raise Failure(USAGE, view.name, str(e)) from None
        return found
    return keys


def prompt_keys(view: View, tokens: list[int], salt: str | None,
                identity: dict[str, Any] | None) -> Array:
    """Of one prompt that must have some."""
    keys = key_maker(view, identity)(tokens, salt)
    if not len(keys):
        size = f"a block of {identity['block_tokens']}" if identity else "a block"
        raise Failure(USAGE, view.name, f"{len(tokens)} tokens do not fill {size}: nothing is "
                      "stored for them")
    return keys
