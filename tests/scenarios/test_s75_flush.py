# SPDX-License-Identifier: Apache-2.0
"""S75: a flush makes all blocks of a namespace unreachable, for every process, also those that are
still being filled at the call. The tier that there is: memory."""
import threading

import kvshm
import pytest
from support.cli import kvshm_cli
from support.oracle import store, verify

FIELDS = {"model": "llama", "weights": "sha256:aa", "block_tokens": 16}
TOKENS = list(range(256))
# A process that follows the arena's epoch, as an engine does: each answer is from keys made anew.
ENGINE = f"""
import kvshm, sys
ident = kvshm.Identity(**{FIELDS!r}, namespace=sys.argv[2])
arena = kvshm.Arena.attach(sys.argv[1], identity=ident, helper=False)
say(arena.epoch)
fill = None
while True:
    order = hear()
    keys = ident.with_epoch(arena.epoch).keys({TOKENS})
    if order == "look":
        with arena.match(keys) as hit:
            say([arena.epoch, len(hit)])
    elif order == "bump":
        say(arena.bump_epoch())
    elif order == "begin":
        fill = arena.allocate(len(keys), keys=keys)
        say(len(fill))
    elif order == "finish":
        fill.register().release()
        say(True)
"""


@pytest.fixture
def ident():
    return kvshm.Identity(**FIELDS, namespace="prod")


@pytest.fixture
def arena(arena_name, ident):
    with kvshm.Arena.create(arena_name, blocks=64, block_bytes=1024, identity=ident,
                            helper=False) as one:
        yield one


def ask(engine, order):
    engine.say(order)
    return engine.hear()


def test_one_bumps_and_the_other_sees_it_at_once(arena, ident, worker):
    engine = worker(ENGINE, arena.name, "prod")
    assert engine.hear() == arena.epoch == 0
    keys = ident.keys(TOKENS)
    store(arena, keys).release()
    assert ask(engine, "look") == [0, 16]
    assert arena.bump_epoch() == 1
    assert ask(engine, "look") == [1, 0], "keys of the new epoch find nothing of the old"
    fresh = ident.with_epoch(arena.epoch).keys(TOKENS)
    assert not (fresh == keys).all(axis=1).any()
    store(arena, fresh).release()
    assert ask(engine, "look") == [1, 16], "and everything of its own"
    assert ask(engine, "bump") == 2 == arena.epoch
    assert arena.presence(ident.with_epoch(arena.epoch).keys(TOKENS)).sum() == 0
    with arena.match(fresh) as hit:  # they are there until evicted, for who asks for them by key
        assert verify(hit, fresh) == []


def test_what_was_being_filled_at_the_flush(arena, ident, worker):
    """The filler began under the old epoch, and finishes after the flush."""
    engine = worker(ENGINE, arena.name, "prod")
    assert engine.hear() == 0
    assert ask(engine, "begin") == 16
    assert arena.bump_epoch() == 1
    fresh = ident.with_epoch(1).keys(TOKENS)
    hit = arena.match(fresh)
    assert len(hit) == 0 and hit.pending is None, "nobody waits for it either"
    assert ask(engine, "finish") is True
    assert len(arena.match(fresh)) == 0
    assert ask(engine, "look") == [1, 0]
    assert len(arena.match(ident.keys(TOKENS))) == 16, "it was stored, under what nobody asks for"


def test_other_namespaces_are_untouched(arena, new_name, worker):
    other = kvshm.Identity(**FIELDS, namespace="test")
    with kvshm.Arena.create(new_name(), blocks=64, block_bytes=1024, identity=other,
                            helper=False) as second:
        store(second, other.keys(TOKENS)).release()
        engine = worker(ENGINE, second.name, "test")
        assert engine.hear() == 0
        arena.bump_epoch()
        assert ask(engine, "look") == [0, 16]


def test_every_bump_counts(arena, worker):
    """Two processes and threads of one: none is lost, no epoch is given twice."""
    engine = worker(ENGINE, arena.name, "prod")
    assert engine.hear() == 0
    seen: list[int] = []

    def bump() -> None:
        seen.extend(arena.bump_epoch() for _ in range(500))
    threads = [threading.Thread(target=bump) for _ in range(2)]
    for one in threads:
        one.start()
    seen += [ask(engine, "bump") for _ in range(100)]
    for one in threads:
        one.join(60)
    assert sorted(seen) == list(range(1, 1101)) and arena.epoch == 1100


def test_who_comes_later_and_who_looks(arena, ident, worker):
    arena.bump_epoch()
    engine = worker(ENGINE, arena.name, "prod")
    assert engine.hear() == 1
    assert kvshm_cli("stat", arena.name, "--json").json["arena"]["space_epoch"] == 1
    arena.close()
    for call in (lambda: arena.epoch, arena.bump_epoch):
        with pytest.raises(kvshm.Closed):
            call()


def test_a_removed_arena_has_no_epoch(arena):
    kvshm.remove(arena.name, force=True)
    for call in (lambda: arena.epoch, arena.bump_epoch):
        with pytest.raises(kvshm.ArenaReplaced):
            call()


def test_an_identity_in_another_epoch(ident):
    other = ident.with_epoch(5)
    assert other.epoch == 5 and other != ident and other.fingerprint == ident.fingerprint
    assert other == kvshm.Identity(**FIELDS, namespace="prod", epoch=5)
    assert other.with_epoch(0) == ident and ident.with_epoch(0) is ident
    unknown = kvshm.Identity(model="m", allow_unknown_weights=True)
    assert unknown.with_epoch(1).allow_unknown_weights
    for wrong in (-1, 1 << 32, "1"):
        with pytest.raises(kvshm.InvalidArgument):
            ident.with_epoch(wrong)
