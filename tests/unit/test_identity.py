# SPDX-License-Identifier: Apache-2.0
"""kvshm.Identity: what it takes, what it refuses, and that all forms of one input are equal."""

from __future__ import annotations

import pickle
from typing import Any

import kvshm
import numpy as np
import pytest

FIELDS: dict[str, Any] = {"model": "m", "weights": "w", "dtype": "bfloat16", "layout": "BLHNC"}
TOKENS = [i * 7919 % 50257 for i in range(64)]
HASHES = [bytes([i]) * 32 for i in range(5)]


@pytest.fixture
def ident() -> Any:
    return kvshm.Identity(**FIELDS, block_tokens=16)


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool((a == b).all())


@pytest.mark.parametrize("dtype", ["u4", "i4", "i8", "u8", "u2", ">u4"])
def test_tokens_of_any_integer_type(ident: Any, dtype: str) -> None:
    base = ident.keys(TOKENS)
    assert base.shape == (4, 16) and base.dtype == np.uint8
    assert same(ident.keys(np.array(TOKENS, dtype=dtype)), base)
    assert same(ident.keys(np.repeat(np.array(TOKENS, dtype=dtype), 2)[::2]), base)
    assert same(ident.keys(tuple(TOKENS)), base)


def test_large_token_ids(ident: Any) -> None:
    top = [2**32 - 1] * 16
    assert same(ident.keys(top), ident.keys(np.array(top, dtype="u8")))
    assert not same(ident.keys(top), ident.keys([2**31 - 1] * 16))


@pytest.mark.parametrize(
    "tokens",
    [[-1] * 16, [2**32] * 16, np.full(16, -1), np.full(16, 2**32), [1.5] * 16, np.full(16, 1.0),
     ["1"] * 16, np.zeros((4, 16), dtype="u4"), "0123456789abcdef", None],
    ids=["-1", "2^32", "array -1", "array 2^32", "1.5", "floats", "texts", "2-d", "text", "None"],
)
def test_refused_tokens(ident: Any, tokens: Any) -> None:
    with pytest.raises((kvshm.InvalidArgument, TypeError, OverflowError)):
        ident.keys(tokens)


def test_hashes_in_any_form(ident: Any) -> None:
    base = ident.keys_from_hashes(HASHES)
    array = np.frombuffer(b"".join(HASHES), dtype="u1").reshape(5, 32)
    assert same(ident.keys_from_hashes(array), base)
    assert same(ident.keys_from_hashes(np.repeat(array, 2, axis=0)[::2]), base)
    assert ident.keys_from_hashes([]).shape == (0, 16)
    assert ident.keys_from_hashes(array[:0]).shape == (0, 16)


@pytest.mark.parametrize(
    "hashes",
    [[b"1234567"], [b"x" * 129], ["text" * 8], [5], None, [b"8 bytes.", b"9 bytes.."]],
    ids=["7 bytes", "129 bytes", "text", "number", "None", "two lengths"],
)
def test_refused_hashes(ident: Any, hashes: Any) -> None:
    with pytest.raises((kvshm.InvalidArgument, TypeError)):
        ident.keys_from_hashes(hashes)


@pytest.mark.parametrize("method, data", [("keys", TOKENS), ("keys_from_hashes", HASHES)])
def test_forms_of_salt_and_extra(ident: Any, method: str, data: Any) -> None:
    """As docs/keys.md has it: salt is an item of type 1, plain extra bytes one of type 5."""
    made = getattr(ident, method)
    assert same(made(data, salt="é"), made(data, salt="é".encode()))
    assert same(made(data, salt="s"), made(data, extra=[(1, b"s")]))
    assert same(made(data, extra=b"x"), made(data, extra=[(5, b"x")]))
    assert same(made(data, salt="s", extra=b"x"), made(data, extra=[(1, b"s"), (5, b"x")]))
    assert same(made(data, salt=None, extra=b""), made(data, extra=[]))
    assert not same(made(data, salt=""), made(data))
    for name, kind in (("salt", 1), ("adapter", 2), ("media", 3), ("group", 4), ("other", 5)):
        assert same(made(data, extra={name: b"x"}), made(data, extra=[(kind, b"x")]))
    for refused in (
        {"salt": 1}, {"salt": 1.5}, {"salt": [1]}, {"extra": 1}, {"extra": [(0, b"x")]},
        {"extra": [(-1, b"x")]}, {"extra": [(2**32, b"x")]}, {"extra": {"colour": b"x"}},
        {"extra": [(1, 1)]}, {"extra": {"group": 1}}, {"extra": {"group": None}},
        {"extra": {"media": [b"x"]}},
    ):
        with pytest.raises((kvshm.InvalidArgument, TypeError)):
            made(data, **refused)


def test_parent_is_a_key_in_any_form(ident: Any) -> None:
    keys = ident.keys(TOKENS)
    for parent in (keys[1], bytes(keys[1]), memoryview(bytes(keys[1]))):
        assert same(ident.keys(TOKENS[32:], parent=parent), keys[2:])
    for refused in (b"short", keys[:2], "0" * 4, "0" * 16, 7, [b"0" * 16]):
        with pytest.raises((kvshm.InvalidArgument, TypeError)):
            ident.keys(TOKENS, parent=refused)


@pytest.mark.semantics(11)
def test_block_sizes() -> None:
    sizes = [1 << n for n in range(11)]
    for size in sizes:
        ident = kvshm.Identity(**FIELDS, block_tokens=size)
        assert ident.keys(range(2048)).shape == (2048 // size, 16)
    for size in (*(set(range(1100)) - set(sizes)), 2048, -1):
        with pytest.raises(kvshm.InvalidArgument):
            kvshm.Identity(**FIELDS, block_tokens=size)


@pytest.mark.parametrize(
    "change",
    [{"model": ""}, {"model": "a\0b"}, {"weights": "\ud800"}, {"namespace": "x" * 1024},
     {"epoch": -1}, {"epoch": 2**32}, {"dtype": 1}, {"model": b"m"}, {"block_tokens": "16"}],
    ids=str,
)
def test_refused_identities(change: dict[str, Any]) -> None:
    """NUL above all: a C string would end there, and two identities would share their keys."""
    with pytest.raises((kvshm.InvalidArgument, TypeError, ValueError, OverflowError)):
        kvshm.Identity(**{**FIELDS, **change})


def test_identity_is_a_value(ident: Any) -> None:
    twin = kvshm.Identity(**FIELDS, block_tokens=16)
    other = kvshm.Identity(**FIELDS, block_tokens=32)
    assert twin == ident and hash(twin) == hash(ident) and ident != other
    assert pickle.loads(pickle.dumps(ident)) == ident
    assert (ident.model, ident.namespace, ident.epoch) == ("m", "", 0)
    assert len(ident.fingerprint) == 16 and ident.fingerprint != other.fingerprint
    with pytest.raises((AttributeError, TypeError)):
        ident.model = "n"
