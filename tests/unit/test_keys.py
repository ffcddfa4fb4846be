# SPDX-License-Identifier: Apache-2.0
"""Identity and keys: the published vectors, and what docs/keys.md promises.

Each test runs on the plain Python reference and on the installed library, so that a vector that
both get wrong in the same way is the only thing left unseen.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # pytest's importlib mode leaves it out

import key_vectors  # noqa: E402
import keyref  # noqa: E402
from keyref import ADAPTER, GROUP, MEDIA, OTHER, SALT, Fields, Item  # noqa: E402

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(key_vectors.JSON_FILE.read_text())
PLAIN = Fields("m")
TOKENS = [i * 7919 % 50257 for i in range(160)]


class Side(Protocol):
    """One identity, as the tests use it."""

    def digests(self) -> tuple[bytes, str]:
        """Fingerprint and text. The identity key shows in the keys only."""

    def tokens(
        self, tokens: Sequence[int], items: Sequence[Item] = (), parent: bytes | None = None
    ) -> list[bytes]:
        """Keys of the full blocks."""

    def hashes(self, hashes: Sequence[bytes], items: Sequence[Item] = ()) -> list[bytes]:
        """Keys bound from an engine's hashes."""


class Reference:
    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.key = keyref.identity_key(fields)

    def digests(self) -> tuple[bytes, str]:
        return keyref.fingerprint(self.fields), keyref.identity_text(self.fields)

    def tokens(
        self, tokens: Sequence[int], items: Sequence[Item] = (), parent: bytes | None = None
    ) -> list[bytes]:
        extra = keyref.extra_digest(self.key, items)
        block = self.fields.block_tokens
        return keyref.token_keys(self.key, tokens, block, extra, parent or keyref.ZERO)

    def hashes(self, hashes: Sequence[bytes], items: Sequence[Item] = ()) -> list[bytes]:
        return keyref.hash_keys(self.key, hashes, keyref.extra_digest(self.key, items))


class Library:
    def __init__(self, fields: Fields) -> None:
        self.identity = importlib.import_module("kvshm").Identity(
            **asdict(fields), allow_unknown_weights=True)

    def digests(self) -> tuple[bytes, str]:
        return self.identity.fingerprint, self.identity.text

    def tokens(
        self, tokens: Sequence[int], items: Sequence[Item] = (), parent: bytes | None = None
    ) -> list[bytes]:
        return rows(self.identity.keys(tokens, extra=list(items), parent=parent))

    def hashes(self, hashes: Sequence[bytes], items: Sequence[Item] = ()) -> list[bytes]:
        return rows(self.identity.keys_from_hashes(list(hashes), extra=list(items)))


def rows(keys: Any) -> list[bytes]:
    assert keys.dtype == "uint8" and keys.ndim == 2 and keys.shape[1] == 16
    return [bytes(row) for row in keys]


@pytest.fixture(params=[Reference, Library], ids=["reference", "library"])
def derive(request: pytest.FixtureRequest) -> Any:
    return request.param


def named(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[group], ids=lambda c: c["name"])


def fields_of(identity_key: str) -> Fields:
    for case in VECTORS["identities"]:
        if case["identity_key"] == identity_key:
            return Fields(**case["fields"])
    raise AssertionError("a vector of an unknown identity")


def items_of(case: dict[str, Any]) -> list[Item]:
    """The items behind a digest; the digests themselves have vectors of their own."""
    key = bytes.fromhex(case["identity_key"])
    for items in key_vectors.EXTRAS.values():
        if keyref.extra_digest(key, items).hex() == case["extra"]:
            return items
    raise AssertionError("a vector of unknown items")


# ---- the vectors ---------------------------------------------------------------------------------


def test_committed_vectors_are_what_the_reference_makes() -> None:
    made = key_vectors.build()
    assert key_vectors.JSON_FILE.read_text() == key_vectors.as_json(made)
    assert key_vectors.TABLE_FILE.read_text() == key_vectors.as_table(made)
    assert all(made.values())


def test_siphash_gives_the_published_figures() -> None:
    """First, second and sixteenth of the 128-bit test vectors that SipHash's authors give."""
    key = bytes(range(16))
    for length, expected in (
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ):
        assert keyref.siphash128(key, bytes(range(length))).hex() == expected


@named("identities")
def test_identity_vectors(derive: Any, case: dict[str, Any]) -> None:
    fields = Fields(**case["fields"])
    fingerprint, text = derive(fields).digests()
    assert fingerprint.hex() == case["fingerprint"]
    assert text == case["text"]
    assert text.isascii() and json.loads(text) == asdict(fields)


@named("tokens")
def test_token_vectors(derive: Any, case: dict[str, Any]) -> None:
    fields = fields_of(case["identity_key"])
    assert fields.block_tokens == case["block_tokens"]
    parent = bytes.fromhex(case["parent"])
    made = derive(fields).tokens(case["tokens"], items_of(case), parent if any(parent) else None)
    assert [k.hex() for k in made] == case["keys"]


@named("hashes")
def test_hash_vectors(derive: Any, case: dict[str, Any]) -> None:
    hashes = [bytes.fromhex(h) for h in case["hashes"]]
    made = derive(fields_of(case["identity_key"])).hashes(hashes, items_of(case))
    assert [k.hex() for k in made] == case["keys"]


# ---- what the keys promise -----------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"model": "n"},
    {"weights": "m"},
    {"dtype": "m"},
    {"layout": "m"},
    {"parallel": "m"},
    {"namespace": "m"},
    {"block_tokens": 32},
    {"epoch": 1},
]


def test_each_field_changes_every_key(derive: Any) -> None:
    hashes = [bytes([i]) * 32 for i in range(4)]
    seen: set[bytes] = set()
    total = 0
    for change in [{}, *CHANGES]:
        identity = derive(replace(PLAIN, **change))
        made = identity.tokens(TOKENS) + identity.hashes(hashes)
        assert made == derive(replace(PLAIN, **change)).tokens(TOKENS) + identity.hashes(hashes)
        total += len(made)
        seen.update(made)
    assert len(seen) == total


def test_the_epoch_alone_is_not_in_the_fingerprint(derive: Any) -> None:
    base = derive(PLAIN).digests()[0]
    for change in CHANGES:
        changed = derive(replace(PLAIN, **change)).digests()[0]
        assert (changed == base) == (change == {"epoch": 1})


APART: list[list[Item]] = [
    [],
    [(SALT, b"")],
    [(ADAPTER, b"")],
    [(SALT, b"abc")],
    [(ADAPTER, b"abc")],
    [(MEDIA, b"abc")],
    [(GROUP, b"abc")],
    [(OTHER, b"abc")],
    [(SALT, b"ab"), (SALT, b"c")],
    [(SALT, b"a"), (SALT, b"bc")],
    [(SALT, b"ab"), (ADAPTER, b"c")],
    [(SALT, b"a"), (ADAPTER, b"bc")],
    [(ADAPTER, b"c"), (SALT, b"ab")],
    [(SALT, b"1")],
    [(SALT, b"\x01")],
    [(SALT, b"abc\x00")],
    [(SALT, b"a"), (SALT, b"b")],
    [(SALT, b"a" + keyref.u32(SALT) + b"b")],  # the same, were there no lengths
    [(SALT, keyref.extra_encoding([(SALT, b"abc")]))],
    [(256 + SALT, b"abc")],
]


def test_no_two_extras_meet(derive: Any) -> None:
    identity = derive(PLAIN)
    hashes = [bytes([i]) * 32 for i in range(4)]
    seen: set[bytes] = set()
    for items in APART:
        made = identity.tokens(TOKENS, items) + identity.hashes(hashes, items)
        assert seen.isdisjoint(made), items
        assert made == identity.tokens(TOKENS, items) + identity.hashes(hashes, items)
        seen.update(made)
    assert len(seen) == len(APART) * (10 + 4)


def test_the_same_value_in_another_place_is_another_identity(derive: Any) -> None:
    ways = [
        Fields("ab", "c"),
        Fields("a", "bc"),
        Fields("a\x02b", ""),  # these two would be the same, were there no lengths
        Fields("a", "b\x02"),
        Fields("abc"),
        Fields("abc", namespace="abc"),
        Fields("abc", weights="abc"),
        Fields("m", epoch=1),
        Fields("m", namespace="1"),
        Fields("m", parallel="16"),
        Fields("é"),
        Fields("e\u0301"),
    ]
    assert len({derive(way).tokens(TOKENS)[0] for way in ways}) == len(ways)


def test_a_key_stands_for_the_whole_prefix(derive: Any) -> None:
    identity = derive(PLAIN)
    base = identity.tokens(TOKENS)
    assert len(base) == 10 and len(set(base)) == 10
    for at in (0, 79, 80, 159):
        other = list(TOKENS)
        other[at] += 1 << 16  # equal in the low half
        made = identity.tokens(other)
        assert made[: at // 16] == base[: at // 16]
        assert set(made[at // 16 :]).isdisjoint(base)
    assert identity.tokens(TOKENS[:79]) == base[:4]
    assert identity.tokens(TOKENS[64:], parent=base[3]) == base[4:]
    assert set(identity.tokens(TOKENS[64:])).isdisjoint(base)
    assert identity.tokens([]) == [] and identity.hashes([]) == []


def test_keys_are_the_same_in_every_process(derive: Any) -> None:
    """Whatever PYTHONHASHSEED, locale and -O say (S32)."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_keys as t\n"
        "d = getattr(t, sys.argv[2])(t.key_vectors.LLAMA)\n"
        "lists = [[(n * 31 + i) % 50257 for i in range(n)] for n in range(0, 2000, 40)]\n"
        "items = [(t.SALT, b'tenant')]\n"
        "made = [k for tokens in lists for k in d.tokens(tokens, items)]\n"
        "made += d.hashes([bytes([i]) * 32 for i in range(100)], items) + [d.digests()[0]]\n"
        "print(t.keyref.blake2b(b''.join(made)).hexdigest(), len(made))\n"
    )
    outputs = set()
    for seed, locale, flags in (
        (None, None, []),
        ("0", "C", []),
        ("random", "C.UTF-8", ["-O"]),
        ("4294967295", "POSIX", ["-X", "utf8=0"]),
    ):
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHASHSEED", "LC_ALL")}
        env |= {"PYTHONHASHSEED": seed} if seed else {}
        env |= {"LC_ALL": locale} if locale else {}
        command = [sys.executable, *flags, "-c", program, str(HERE), derive.__name__]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert int(outputs.pop().split()[1]) == sum(n // 16 for n in range(0, 2000, 40)) + 101


# ---- any input -----------------------------------------------------------------------------------

texts = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12
)
numbers = st.integers(0, 2**32 - 1)
any_fields = st.builds(
    Fields,
    model=texts.filter(bool),
    weights=texts,
    dtype=texts,
    layout=texts,
    parallel=texts,
    namespace=texts,
    block_tokens=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    epoch=numbers,
)
any_items = st.lists(st.tuples(st.integers(1, 2**32 - 1), st.binary(max_size=40)), max_size=4)


def read_encoding(data: bytes) -> list[tuple[int, bytes]]:
    """What an encoding says, by its tags and lengths alone."""
    assert data[0] == 1
    at, found = 1, []
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        assert end <= len(data)
        found.append((data[at], data[at + 5 : end]))
        at = end
    return found


@given(any_fields)
def test_an_encoding_can_be_read_in_one_way_only(fields: Fields) -> None:
    values: list[str | int]
    tags = dict(read_encoding(keyref.encoding(fields, with_epoch=True)))
    values = [tags[tag].decode() for tag in range(1, 7)]
    values += [int.from_bytes(tags[tag], "little") for tag in (7, 8)]
    assert values == list(asdict(fields).values())


@given(
    fields=any_fields,
    tokens=st.lists(numbers, max_size=200),
    items=any_items,
    hashes=st.integers(8, 128).flatmap(
        lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=4)
    ),
    cut=st.integers(0, 10),
)
@settings(max_examples=150, deadline=None)
def test_library_and_reference_agree_on_anything(
    fields: Fields, tokens: list[int], items: list[Item], hashes: list[bytes], cut: int
) -> None:
    library: Side = Library(fields)
    reference: Side = Reference(fields)
    assert library.digests() == reference.digests()
    assert library.hashes(hashes, items) == reference.hashes(hashes, items)
    keys = reference.tokens(tokens, items)
    assert library.tokens(tokens, items) == keys
    done = min(cut, len(keys))  # and in two steps
    rest = tokens[done * fields.block_tokens :]
    assert library.tokens(rest, items, keys[done - 1] if done else None) == keys[done:]
