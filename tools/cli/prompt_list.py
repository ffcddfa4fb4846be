# SPDX-License-Identifier: Apache-2.0
"""Files of many prompts: as text, as token ids, or as keys."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..inspector.view import Array
from .explain import read_keys
from .failures import USAGE, Failure
from .prompt import text_of, tokens_of


@dataclass
class Prompt:
    """What the file says of it: one of these, and the salt that goes with it."""

    text: str | None = None
    tokens: list[int] | None = None
    keys: Array | None = None
    salt: str | None = None


def read_texts(data: bytes, name: str, salt: str | None) -> list[Prompt]:
    """A prompt a line. JSON lines if the first is a JSON string or object: text, or an object with
    `prompt` (text, or token ids) and maybe `cache_salt`."""
    lines = [(n, line) for n, line in enumerate(text_of(data, name).splitlines(), 1)
             if line.strip()]
    if not lines:
        raise Failure(USAGE, "", f"{name}: no prompts", "wanted one a line")
    if not isinstance(_json(lines[0][1]), str | dict):
        return [Prompt(text=line, salt=salt) for _, line in lines]
    return [_prompt(_json(line), f"{name}: line {n}", salt) for n, line in lines]


def _prompt(value: Any, where: str, salt: str | None) -> Prompt:
    made = {"prompt": value} if isinstance(value, str) else value
    given = made.get("prompt") if isinstance(made, dict) else None
    own = made.get("cache_salt", salt) if isinstance(made, dict) else None
    if own is None or isinstance(own, str):
        if isinstance(given, str):
            return Prompt(text=given, salt=own)
        if isinstance(given, list):
            return Prompt(tokens=_ids(given, where), salt=own)
    raise Failure(USAGE, "", f"{where}: no prompt", "wanted a JSON string, or an object with "
                  '"prompt": text or token ids, and maybe "cache_salt": text')


def read_tokens(data: bytes, name: str, salt: str | None) -> list[Prompt]:
    return [Prompt(tokens=_ids(ids, name), salt=salt) for ids in _lists(data, name, "token ids")]


def read_key_lists(data: bytes, name: str) -> list[Prompt]:
    return [Prompt(keys=read_keys(" ".join(map(str, keys)).encode(), name))
            for keys in _lists(data, name, "keys")]


def _ids(values: list[Any], where: str) -> list[int]:
    if not all(isinstance(one, int | str) for one in values):
        raise Failure(USAGE, "", f"{where}: no token ids", "wanted numbers, in one list a prompt")
    return tokens_of(" ".join(map(str, values)).encode(), where, None) if values else []


def _lists(data: bytes, name: str, what: str) -> list[list[Any]]:
    """A JSON list of lists, or a JSON list a line, or words, with an empty line between two
    prompts. A list or words without any of that are one prompt."""
    text = text_of(data, name)
    whole = _json(text)
    if isinstance(whole, list):
        nested = bool(whole) and all(isinstance(one, list) for one in whole)
        found = whole if nested else [whole]
    elif text.lstrip().startswith("["):
        found = [_json(line) for line in text.splitlines() if line.strip()]
    else:
        found = [part.split() for part in _paragraphs(text)]
    if not found or not all(isinstance(one, list) for one in found):
        raise Failure(USAGE, "", f"{name}: no {what}", "wanted a JSON list a line, or words with "
                      "an empty line between two prompts")
    return found


def _paragraphs(text: str) -> list[str]:
    parts = [""]
    for line in text.replace(",", " ").splitlines():
        if line.strip():
            parts[-1] += line + "\n"
        elif parts[-1]:
            parts.append("")
    return [part for part in parts if part]


def _json(text: str) -> Any:
    """None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
