# SPDX-License-Identifier: Apache-2.0
"""The published test vectors: inputs here, outputs from keyref.

`python key_vectors.py --write` writes key_vectors.json (published with docs/keys.md) and the same
as a C++ table for cpp/tests. test_keys.py fails when a committed file differs from what this makes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keyref
from keyref import ADAPTER, GROUP, MEDIA, OTHER, SALT, Fields, Item

HERE = Path(__file__).resolve().parent
JSON_FILE = HERE / "key_vectors.json"
TABLE_FILE = HERE.parent.parent / "cpp" / "tests" / "key_vectors.inc"

LLAMA = Fields("llama-3.1-8b", "sha256:00c0ffee", "bfloat16", "BLHNC", "tp=2,pp=1", "prod", 16, 3)
IDENTITIES: dict[str, Fields] = {
    "model alone": Fields("m"),
    "all fields": LLAMA,
    "other epoch": Fields(**{**asdict(LLAMA), "epoch": 4}),
    "split ab|c": Fields("ab", "c"),
    "split a|bc": Fields("a", "bc"),
    "text to escape": Fields('q"b\\s/\x01\n\t\x7f é 語 \U0001f600', dtype="fp8"),
    "block of 1": Fields("m", block_tokens=1),
    "block of 256": Fields("m", block_tokens=256),
    "largest numbers": Fields("m", block_tokens=1024, epoch=2**32 - 1),
}

EXTRAS: dict[str, list[Item]] = {
    "none": [],
    "salt abc": [(SALT, b"abc")],
    "adapter abc": [(ADAPTER, b"abc")],
    "empty salt": [(SALT, b"")],
    "two salts ab|c": [(SALT, b"ab"), (SALT, b"c")],
    "salt, adapter": [(SALT, b"tenant"), (ADAPTER, b"lora-7")],
    "adapter, salt": [(ADAPTER, b"lora-7"), (SALT, b"tenant")],
    "media": [(MEDIA, bytes(range(32))), (MEDIA, bytes(range(1, 33)))],
    "group": [(GROUP, keyref.u32(1))],
    "long, own type": [(OTHER, bytes(range(200))), (70000, b"\x00")],
}


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return [(seed + i * 2654435761) % 2**32 for i in range(count)]


# name: identity, extra, name of the case whose last key is the parent, tokens
CHAINS: dict[str, tuple[str, str, str | None, list[int]]] = {
    "one block": ("all fields", "none", None, list(range(16))),
    "three blocks and a rest": ("all fields", "none", None, tokens_of(55)),
    "less than a block": ("all fields", "none", None, tokens_of(15)),
    "salted": ("all fields", "salt abc", None, tokens_of(48)),
    "continued": ("all fields", "none", "three blocks and a rest", tokens_of(32, 7)),
    "blocks of one": ("block of 1", "none", None, [0, 1, 2**31, 2**32 - 1]),
    "blocks of 256": ("block of 256", "media", None, tokens_of(512)),
    "all zero": ("model alone", "none", None, [0] * 32),
}

# name: identity, extra, hashes
BINDINGS: dict[str, tuple[str, str, list[bytes]]] = {
    "sha-256 sized": ("all fields", "none", [bytes(range(i, i + 32)) for i in range(3)]),
    "salted": ("all fields", "salt, adapter", [bytes(range(i, i + 32)) for i in range(3)]),
    "64-bit": ("model alone", "none", [keyref.u32(i) * 2 for i in (0, 1, 2**32 - 1)]),
    "36 bytes": ("model alone", "group", [bytes(range(36)), bytes(36)]),
    "128 bytes": ("model alone", "none", [bytes(range(128))]),
}


def build() -> dict[str, list[dict[str, Any]]]:
    keys = {name: keyref.identity_key(fields) for name, fields in IDENTITIES.items()}
    key = keys["all fields"]
    digests = {
        (identity, name): keyref.extra_digest(keys[identity], items)
        for identity in keys
        for name, items in EXTRAS.items()
    }
    chains: list[dict[str, Any]] = []
    last: dict[str, bytes] = {}
    for name, (identity, extra, after, tokens) in CHAINS.items():
        block = IDENTITIES[identity].block_tokens
        parent = last[after] if after else keyref.ZERO
        made = keyref.token_keys(keys[identity], tokens, block, digests[identity, extra], parent)
        last[name] = made[-1] if made else parent
        chains.append(
            {
                "name": name,
                "identity_key": keys[identity].hex(),
                "extra": digests[identity, extra].hex(),
                "parent": parent.hex(),
                "block_tokens": block,
                "tokens": tokens,
                "keys": [k.hex() for k in made],
            }
        )
    bindings = [
        {
            "name": name,
            "identity_key": keys[identity].hex(),
            "extra": digests[identity, extra].hex(),
            "hashes": [h.hex() for h in hashes],
            "keys": [
                k.hex() for k in keyref.hash_keys(keys[identity], hashes, digests[identity, extra])
            ],
        }
        for name, (identity, extra, hashes) in BINDINGS.items()
    ]
    identities = [
        {
            "name": name,
            "fields": asdict(fields),
            "encoding": keyref.encoding(fields, with_epoch=True).hex(),
            "identity_key": keys[name].hex(),
            "fingerprint": keyref.fingerprint(fields).hex(),
            "text": keyref.identity_text(fields),
        }
        for name, fields in IDENTITIES.items()
    ]
    extras = [
        {
            "name": name,
            "identity_key": key.hex(),
            "items": [{"type": kind, "data": data.hex()} for kind, data in items],
            "digest": digests["all fields", name].hex(),
        }
        for name, items in EXTRAS.items()
    ]
    return {"identities": identities, "extras": extras, "tokens": chains, "hashes": bindings}


def as_json(vectors: dict[str, list[dict[str, Any]]]) -> str:
    """One case a line, so that a change shows which case it touches."""
    parts = [
        f"{json.dumps(group)}: [\n" + ",\n".join("  " + json.dumps(case) for case in cases) + "\n]"
        for group, cases in vectors.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def literal(text: str) -> str:
    """A C++ string of these UTF-8 bytes; octal escapes end after three digits, hex ones do not."""
    plain = {c for c in range(32, 127) if chr(c) not in '"\\?'}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def strings(values: list[str]) -> str:
    return "{" + ", ".join(literal(v) for v in values) + "}"


def as_table(vectors: dict[str, list[dict[str, Any]]]) -> str:
    """The same for C++: brace initialisers of the structs in keys_test.cpp, one table a group."""
    lines = ["// Made by tests/unit/key_vectors.py from the published vectors: do not edit.", ""]
    lines.append("static const identity_case identity_cases[] = {")
    for case in vectors["identities"]:
        f = case["fields"]
        texts = [f[n] for n in ("model", "weights", "dtype", "layout", "parallel", "namespace")]
        lines.append(
            f"    {{{literal(case['name'])}, {strings(texts)}, {f['block_tokens']}u, "
            f"{f['epoch']}u, {literal(case['identity_key'])}, {literal(case['fingerprint'])}, "
            f"{literal(case['text'])}}},"
        )
    lines += ["};", "", "static const extra_case extra_cases[] = {"]
    for case in vectors["extras"]:
        items = ", ".join(f"{{{i['type']}u, {literal(i['data'])}}}" for i in case["items"])
        lines.append(
            f"    {{{literal(case['name'])}, {literal(case['identity_key'])}, {{{items}}}, "
            f"{literal(case['digest'])}}},"
        )
    lines += ["};", "", "static const token_case token_cases[] = {"]
    for case in vectors["tokens"]:
        tokens = "{" + ", ".join(f"{t}u" for t in case["tokens"]) + "}"
        lines.append(
            f"    {{{literal(case['name'])}, {literal(case['identity_key'])}, "
            f"{literal(case['extra'])}, {literal(case['parent'])}, {case['block_tokens']}u, "
            f"{tokens}, {strings(case['keys'])}}},"
        )
    lines += ["};", "", "static const hash_case hash_cases[] = {"]
    for case in vectors["hashes"]:
        lines.append(
            f"    {{{literal(case['name'])}, {literal(case['identity_key'])}, "
            f"{literal(case['extra'])}, {strings(case['hashes'])}, {strings(case['keys'])}}},"
        )
    return "\n".join([*lines, "};", ""])


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: key_vectors.py --write")
    made = build()
    JSON_FILE.write_text(as_json(made))
    TABLE_FILE.write_text(as_table(made))
