# SPDX-License-Identifier: Apache-2.0
"""S29: identity is part of every key, and of every arena's name and fingerprint."""
import errno
import json
import os
import pickle
import time

import kvshm
import pytest
from support.cli import kvshm_cli
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
        kvshm.Identity(model="", weights="w")


@pytest.mark.parametrize("weights", ["", " ", "unknown", "Unknown", "NONE", "null", "n/a", " ? ",
                                     "sha256:", None], ids=repr)
def test_unknown_weights_are_refused(weights):
    """Unless that is allowed in so many words; the remedy is in the message."""
    given = {} if weights is None else {"weights": weights}
    with pytest.raises(kvshm.InvalidArgument, match="fingerprint.*allow_unknown_weights=True"):
        kvshm.Identity(model="m", **given)
    allowed = kvshm.Identity(model="m", **given, allow_unknown_weights=True)
    assert allowed.weights == (weights or "") and allowed.allow_unknown_weights
    # It is permission, and part of nothing: keys, comparison, what a process sends to another.
    again = pickle.loads(pickle.dumps(allowed))
    assert again == allowed and again.allow_unknown_weights
    assert "allow_unknown_weights=True" in repr(again)
    known = kvshm.Identity(model="m", weights="w")
    assert not known.allow_unknown_weights
    permitted = kvshm.Identity(model="m", weights="w", allow_unknown_weights=True)
    assert permitted == known and (permitted.keys(TOKENS) == known.keys(TOKENS)).all()


def test_unknown_weights_in_an_arena(arena_name):
    """Through every call that takes an identity, and in C."""
    allowed = kvshm.Identity(model="m", allow_unknown_weights=True)
    assert kvshm.auto_name(allowed)
    with kvshm.Arena.create(arena_name, blocks=8, block_bytes=1024, identity=allowed,
                            helper=False):
        kvshm.Arena.attach(arena_name, identity=allowed, helper=False).close()
        with pytest.raises(kvshm.IdentityMismatch):
            kvshm.Arena.attach(arena_name, identity=kvshm.Identity(model="m", weights="w"))
    capi = pytest.importorskip("kvshm.capi")
    ffi, lib = capi.ffi, capi.lib
    model = ffi.new("char[]", b"m")
    ident = ffi.new("kvshm_identity *", {"size": ffi.sizeof("kvshm_identity"), "model": model,
                                         "block_tokens": 16})
    key, mark = ffi.new("uint8_t[32]"), ffi.new("uint8_t[16]")
    assert lib.kvshm_identity_derive(ident, key, mark) == -errno.EINVAL
    assert b"KVSHM_UNKNOWN_WEIGHTS" in ffi.string(lib.kvshm_last_error())
    ident.flags = lib.KVSHM_UNKNOWN_WEIGHTS
    assert lib.kvshm_identity_derive(ident, key, mark) == 0
    ident.flags = 2
    assert lib.kvshm_identity_derive(ident, key, mark) == -errno.EINVAL
    ident.flags, ident.size = 1, 64  # a header that knew no flags: they are not looked at
    assert lib.kvshm_identity_derive(ident, key, mark) == -errno.EINVAL


def test_another_identity_shows_in_status(player, arena_name):
    """Found data of another identity: counted, and the last one named, for C, Python and people."""
    mine = kvshm.Identity(**FIELDS)
    with kvshm.Arena.create(arena_name, blocks=8, block_bytes=1024, identity=mine,
                            helper=False) as arena:
        info, before = arena.info(), kvshm_cli("stat", "--json", arena_name).json["arena"]
        assert (info.foreign_at, info.foreign_identity) == (0, "")
        assert before["foreign_attaches"] is None and before["epochs"] == [3]
        store(arena, mine.keys(TOKENS[:64])).release()
        other = player()
        for field in ("weights", "model", "dtype"):
            error = other.fails(f"kvshm.Arena.open({arena_name!r}, identity=kvshm.Identity("
                                f"**{ {**FIELDS, field: CHANGED[field]} !r}), blocks=8, "
                                "block_bytes=1024)")
            assert error.kind == "IdentityMismatch"
        stats, info = arena.stats(), arena.info()
        assert stats.foreign_attaches_total == 3
        assert json.loads(info.foreign_identity)["dtype"] == CHANGED["dtype"]
        assert info.foreign_pid == other.pid and abs(info.foreign_at - time.time()) < 60
        d = kvshm_cli("stat", "--json", arena_name).json
        assert d["stats"]["foreign_attaches_total"] == 3
        assert d["arena"]["foreign_attaches"]["count"] == 3
        assert d["arena"]["foreign_attaches"]["last_pid"] == other.pid
        assert d["arena"]["foreign_attaches"]["last_identity"]["dtype"] == CHANGED["dtype"]
        text = kvshm_cli("stat", arena_name).out
        assert "3 processes of another identity refused" in text and CHANGED["dtype"] in text
        # Nothing else was changed by them.
        assert stats.blocks_inactive == 4 and stats.slots_used == 1 and arena.is_valid() == []
        # Another epoch is let in, finds nothing, and shows.
        other.do(f"a = kvshm.Arena.attach({arena_name!r}, identity=kvshm.Identity("
                 f"**{ {**FIELDS, 'epoch': 4} !r})); n = len(a.match(a.identity.keys({TOKENS})))")
        assert other.get("n") == 0
        with kvshm.Arena.attach(arena_name, helper=False):  # without any
            d = kvshm_cli("stat", "--json", arena_name).json
            assert d["arena"]["epochs"] == [3, 4]
            assert sorted(p["epoch"] or 0 for p in d["processes"]) == [0, 3, 4]
            assert [p.epoch for p in arena.processes()] == [3, 4, None]
        assert arena.stats().foreign_attaches_total == 3


def test_many_of_another_identity_at_once(player, arena_name):
    """Each is counted; the one that is named is one of them, whole."""
    mine = kvshm.Identity(**FIELDS)
    with kvshm.Arena.create(arena_name, blocks=8, block_bytes=1024, identity=mine,
                            helper=False) as arena:
        crowd = [player() for _ in range(4)]
        for i, one in enumerate(crowd):
            one.send(f"""
                wrong = kvshm.Identity(model="m" * {100 * (i + 1)}, weights="{'abcd'[i]}" * 200)
                for _ in range(50):
                    try:
                        kvshm.Arena.attach({arena_name!r}, identity=wrong)
                    except kvshm.IdentityMismatch:
                        pass
            """)
        seen = set()
        until = time.monotonic() + 30
        while arena.stats().foreign_attaches_total < 200 and time.monotonic() < until:
            if text := arena.info().foreign_identity:
                found = json.loads(text)
                assert len(found["model"]) == 100 * ("abcd".index(found["weights"][0]) + 1)
                assert len(set(found["weights"])) == 1 and len(found["weights"]) == 200
                seen.add(found["weights"][0])
        for one in crowd:
            one.answer()
        assert arena.stats().foreign_attaches_total == 200 and seen


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
