# SPDX-License-Identifier: Apache-2.0
"""S29: identity is part of every key, and of every arena's name and fingerprint."""
import os

import kvshm
import pytest
from support.oracle import store, verify

FIELDS = {"model": "llama", "weights": "sha256:aa", "dtype": "bfloat16", "layout": "BLHNC",
          "block_tokens": 16, "parallel": "tp=2", "namespace": "prod", "epoch": 3}
CHANGED = {"model": "llama2", "weights": "sha256:ab", "dtype": "float8", "layout": "BLNHC",
           "block_tokens": 32, "parallel": "tp=4", "namespace": "test", "epoch": 4}
TOKENS = list(range(256))


@pytest.fixture
def arena(arena_name):
    """A raw arena, so that only the keys stand between the identities."""
    with kvshm.Arena.create(arena_name, blocks=64, block_bytes=1024, helper=False) as one:
        store(one, kvshm.Identity(**FIELDS).keys(TOKENS)).release()
        yield one


def test_the_unchanged_identity_hits(arena):
    keys = kvshm.Identity(**FIELDS).keys(TOKENS)
    with arena.match(keys) as hit:
        assert len(hit) == 16 and verify(hit, keys) == []


@pytest.mark.parametrize("field", FIELDS)
def test_one_field_changed(arena, field):
    other = kvshm.Identity(**{**FIELDS, field: CHANGED[field]})
    keys = other.keys(TOKENS)
    assert len(arena.match(keys)) == 0
    assert arena.match_scattered(keys).hits == 0
    assert arena.scan(keys).hits == 0
    assert not arena.presence(keys).any()
    # a block in the middle does not match by itself either
    assert arena.match_scattered(other.keys(TOKENS[64:])).hits == 0


@pytest.mark.parametrize("field", FIELDS)
def test_an_arena_of_that_identity(arena_name, field):
    """All but the epoch, which lives within one arena, are what an arena is compared by."""
    mine = kvshm.Identity(**FIELDS)
    other = kvshm.Identity(**{**FIELDS, field: CHANGED[field]})
    with kvshm.Arena.create(arena_name, blocks=8, block_bytes=1024, identity=mine, helper=False):
        if field == "epoch":
            with kvshm.Arena.attach(arena_name, identity=other, helper=False):
                return
        with pytest.raises(kvshm.IdentityMismatch) as refused:
            kvshm.Arena.attach(arena_name, identity=other)
        # What was found and what was wanted are both in the message, so the field can be seen.
        assert str(FIELDS[field]) in str(refused.value)
        assert str(CHANGED[field]) in str(refused.value)
        assert kvshm.auto_name(mine) != kvshm.auto_name(other)
        with kvshm.Arena.attach(arena_name, identity=mine, helper=False) as again:
            assert str(FIELDS[field]) in again.info().identity


def test_an_empty_model_is_refused():
    with pytest.raises(kvshm.InvalidArgument, match="model"):
        kvshm.Identity(model="")


def test_keys_under_the_automatic_name(player):
    """Two engines that agree share by default; one that differs in one field does not."""
    names = []
    try:
        for weights in ("w1", "w1", "w2"):
            one = player()
            one.do(f"ident = kvshm.Identity(model='s29-{os.getpid()}', weights={weights!r}); "
                   "a = kvshm.Arena.open(identity=ident, blocks=16, block_bytes=1024); "
                   "keys = ident.keys(list(range(64))); found = len(a.match(keys))")
            names.append((one.get("a.name"), one.get("found")))
            if not names[-1][1]:
                one.do("store(a, keys).release()")
        assert [found for _, found in names] == [0, 4, 0]
        assert names[0][0] == names[1][0] != names[2][0]
    finally:
        for name in {name for name, _ in names}:
            kvshm.remove(name, force=True)
