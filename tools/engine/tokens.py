# SPDX-License-Identifier: Apache-2.0
"""A byte-level vocabulary: 256 bytes and a few marks that no text can contain."""

from __future__ import annotations

BEGIN = 256
SYSTEM = 257
USER = 258
ASSISTANT = 259
END = 260
# 264 with three unused ids, so that the rows of the embedding are a round number.
VOCAB = 264

_NAMES = {BEGIN: "<begin>", SYSTEM: "<system>", USER: "<user>", ASSISTANT: "<assistant>",
          END: "<end>"}


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8"))


def decode(tokens: list[int]) -> str:
    """For reading: marks by name, bytes that are no text escaped."""
    parts: list[str] = []
    run = bytearray()
    for token in tokens:
        if token < 256:
            run.append(token)
            continue
        parts.append(run.decode("utf-8", "backslashreplace"))
        run.clear()
        parts.append(_NAMES.get(token, f"<{token}>"))
    parts.append(run.decode("utf-8", "backslashreplace"))
    return "".join(parts)


def system_turn(text: str) -> list[int]:
    return [BEGIN, SYSTEM, *encode(text), END]


def end_turn() -> list[int]:
    """The mark after an answer."""
    return [END]


def user_turn(text: str) -> list[int]:
    """The user's words, and the mark after which the model answers."""
    return [USER, *encode(text), END, ASSISTANT]
