# SPDX-License-Identifier: Apache-2.0
"""S31, S32, S33: collisions are detected, keys are equal everywhere, fields are not confused.

The published test vectors are checked in tests/unit/test_keys.py and cpp/tests/keys_test.cpp.
"""
import glob
import hashlib
import itertools
import os
import subprocess
import sys

import kvshm
import numpy as np
import pytest
from support.oracle import payload, store, verify

IDENT = kvshm.Identity(model="s31", weights="w", block_tokens=16)


def test_near_inputs_have_other_keys():
    """S31 (a)."""
    base = np.arange(16, dtype=np.uint32)
    token_lists = [base + (1 << 8) * n for n in range(200)]  # equal low 8 bits
    token_lists += [base + (1 << 16) * n for n in range(1, 200)]  # equal low 16 bits
    keys = {bytes(IDENT.keys(t)[0]) for t in token_lists}
    assert len(keys) == len(token_lists)
    media = [{"media": bytes.fromhex(f"{n:028x}beef")} for n in range(500)]
    assert len({bytes(IDENT.keys(base, extra=m)[0]) for m in media}) == 500
    # chains that differ in their first token and agree in all later blocks
    chains = [np.concatenate([[n], np.arange(1, 64)]) for n in range(100)]
    assert len({bytes(IDENT.keys(c)[-1]) for c in chains}) == 100


def colliding(n):
    """Keys with one tag and one pair of buckets, whatever the size of the index.

    The tag is the low 31 bits of the first half, the buckets are the top bits of the two halves.
    """
    words = np.empty((n, 2), np.uint64)
    words[:, 0] = 0x5A5A_5A5A_1234_5678
    words[:, 1] = np.uint64(0xC3C3_C3C3 << 32) + np.arange(n, dtype=np.uint64)
    return words.view(np.uint8)


def test_certain_collisions(arena_name, rounds):
    """S31 (b): every read is right, or a miss, and the index stays in its bounds."""
    n = rounds(2_000, 10_000)
    keys = colliding(n)
    with kvshm.Arena.create(arena_name, blocks=512, block_bytes=256, helper=False) as arena:
        hits = present = 0
        for first in range(0, n, 50):
            some = keys[first:first + 50]
            with store(arena, some, chained=False) as held:
                assert verify(held, some) == []
                with arena.match_scattered(some) as found:
                    for i in range(len(found)):
                        if found.ids[i] == kvshm.NONE:
                            continue
                        hits += 1
                        with found.view(i) as view:
                            want = payload(some[i], 256, found.handle(i).seq)
                            assert bytes(view) == want.tobytes()
            present = arena.presence(keys).astype(bool).sum()
            assert present <= 16, "two buckets of eight"
        assert hits > 0 and present > 0
        assert arena.is_valid() == []
        stats = arena.stats()
        assert stats.private_total > 0, "what has no entry is counted"
        assert stats.registered_total + stats.private_total == n
        # A key that was never stored, in the same buckets with the same tag, is a miss.
        assert arena.match_scattered(colliding(n + 100)[n:]).hits == 0


MAKE = """
import hashlib, json, sys
import numpy as np
import kvshm
ident = kvshm.Identity(model="s32", weights="w", block_tokens=16)
h = hashlib.sha256()
for n in range(int(sys.argv[1])):
    tokens = (np.arange(16 * (1 + n % 5), dtype=np.uint32) * 7 + n)
    h.update(ident.keys(tokens, salt=("\\u00e4", None)[n % 2], extra={"adapter": b"x" * (n % 3)}
                        if n % 3 else b"").tobytes())
print(h.hexdigest())
"""


def python_versions():
    """Other interpreters of this host that have kvshm."""
    found = {os.path.realpath(sys.executable): sys.executable}
    for path in glob.glob("/usr/bin/python3.[0-9]*") + glob.glob("/usr/local/bin/python3.[0-9]*"):
        if path.rsplit(".", 1)[1].isdigit():
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def test_equal_in_every_process(rounds):
    """S32: hash seeds, locales, interpreters, environment."""
    count = str(rounds(200, 1000))
    environments = [{}, {"PYTHONHASHSEED": "0"}, {"PYTHONHASHSEED": "random"},
                    {"PYTHONHASHSEED": "12345"}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"},
                    {"PYTHONUTF8": "0", "LC_ALL": "POSIX"},
                    {"KVSHM_SEED": "1", "KVSHM_CHECK": "1", "KVSHM_MODEL": "other"}]
    seen = set()
    for extra in environments:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"} | extra
        done = subprocess.run([sys.executable, "-c", MAKE, count], env=env, capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1
    for other in python_versions():
        done = subprocess.run([other, "-c", MAKE, count], capture_output=True, text=True,
                              timeout=60)
        if done.returncode == 0:  # else it has no kvshm
            seen.add(done.stdout)
    assert len(seen) == 1


def test_c_and_python_agree(arena_name):
    """S32: stored through Python, found through the C API, and the other way round."""
    capi = pytest.importorskip("kvshm.capi")
    ffi, lib = capi.ffi, capi.lib
    text = [ffi.new("char[]", s) for s in (b"s32", b"w", b"bfloat16", b"BLHNC", b"", b"")]
    ident = ffi.new("kvshm_identity *")
    ident.size, ident.block_tokens = ffi.sizeof("kvshm_identity"), 16
    (ident.model, ident.weights, ident.dtype, ident.layout, ident.parallel, ident.space) = text
    key, mark = ffi.new("uint8_t[32]"), ffi.new("uint8_t[16]")
    assert lib.kvshm_identity_derive(ident, key, mark) == 0
    python = kvshm.Identity(model="s32", weights="w", block_tokens=16)
    assert bytes(ffi.buffer(mark)) == python.fingerprint
    out = ffi.new("kvshm_key[8]")
    tokens = ffi.new("uint32_t[]", list(range(1000, 1128)))
    zero = ffi.NULL
    assert lib.kvshm_keys_tokens(key, zero, zero, tokens, 128, 16, out, 8) == 8
    mine = np.frombuffer(ffi.buffer(out), np.uint8).reshape(8, 16)
    theirs = python.keys(list(range(1000, 1128)))
    assert (mine == theirs).all()
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=512, helper=False) as arena:
        store(arena, mine.copy()).release()
        assert len(arena.match(theirs)) == 8


def test_stored_in_one_found_in_others(player, arena_name):
    """S32: all of it, across processes that were told different hash seeds."""
    tokens = "[n * 31 % 50000 for n in range(16 * 40)]"
    one = player()
    one.do("ident = kvshm.Identity(model='s32', weights='w'); "
           f"keys = ident.keys({tokens}, salt='t')")
    one.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=512); "
           "store(a, keys).release()")
    done = subprocess.run([sys.executable, "-c", f"""
import kvshm
a = kvshm.Arena.attach({arena_name!r})
print(len(a.match(kvshm.Identity(model='s32', weights='w').keys({tokens}, salt='t'))))
"""], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "40", done.stderr


def test_fields_cannot_be_confused():
    """S33: every pair of these is different input, so it has different keys."""
    tokens = list(range(16))
    variants = {
        "nothing": {}, "salt": {"salt": "abc"}, "adapter": {"extra": {"adapter": b"abc"}},
        "media": {"extra": {"media": b"abc"}}, "group": {"extra": {"group": b"abc"}},
        "other": {"extra": {"other": b"abc"}},
        "ab,c": {"extra": [("other", b"ab"), ("other", b"c")]},
        "a,bc": {"extra": [("other", b"a"), ("other", b"bc")]},
        "abc in media then salt": {"salt": "abc", "extra": {"media": b"abc"}},
        "adapter and media": {"extra": [("adapter", b"abc"), ("media", b"abc")]},
        "media and adapter": {"extra": [("media", b"abc"), ("adapter", b"abc")]},
        "empty salt": {"salt": ""}, "empty adapter": {"extra": {"adapter": b""}},
        "text 1": {"salt": "1"}, "byte 1": {"salt": b"\x01"},
        "four bytes 1": {"salt": b"\x01\0\0\0"}, "NUL at the end": {"salt": b"abc\0"},
        "parent": {"parent": bytes(range(16))}, "salt like a parent": {"salt": bytes(range(16))},
    }
    keys = {what: bytes(IDENT.keys(tokens, **how)[0]) for what, how in variants.items()}
    for one, other in itertools.combinations(keys, 2):
        assert keys[one] != keys[other], f"{one} and {other}"
    assert len(set(keys.values())) == len(variants)
    # the same value as a field of the identity
    names = [kvshm.Identity(**fields, allow_unknown_weights=True) for fields in (
        {"model": "abc"}, {"model": "x", "weights": "abc"}, {"model": "x", "namespace": "abc"},
        {"model": "x", "parallel": "abc"}, {"model": "xa", "weights": "bc"},
        {"model": "x", "weights": "a", "parallel": "bc"})]
    assert len({i.fingerprint for i in names}) == len(names)
    assert len({bytes(i.keys(tokens)[0]) for i in names}) == len(names)
    # an engine's own hashes are bound apart from tokens
    digest = hashlib.sha256(b"block").digest()
    assert bytes(IDENT.keys_from_hashes([digest])[0]) not in keys.values()
    assert bytes(IDENT.keys_from_hashes([digest])[0]) != digest[:16]
