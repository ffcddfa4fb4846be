# SPDX-License-Identifier: Apache-2.0
"""Guards: a block cannot be used in the wrong stage, and misuse harms nothing."""
import gc
import threading

import kvshm
import pytest
from support.arenas import BLOCK, content, gauges, keys

KEY, OTHER = (bytes(key) for key in keys(2, seed=3))


def mutable(arena):
    return kvshm.mutable_blocks(arena)[0]


def test_the_whole_life(arena):
    block = mutable(arena)
    block.view()[:] = content(KEY)
    staged = block.stage(KEY)
    assert staged.key == bytes(KEY) and staged.id == block.id
    assert not arena.presence([KEY])[0]
    done = staged.register()
    assert done.status == kvshm.Status.PRIMARY
    assert bytes(done.view()) == content(KEY)
    weak = done.downgrade()
    assert gauges(arena)["inactive"] == 1
    again = weak.upgrade()
    assert again.id == done.id and bytes(again.view()) == content(KEY)
    assert "ImmutableBlock" in repr(again) and "WeakBlock" in repr(weak)


def test_a_step_uses_its_guard_up(arena):
    block = mutable(arena)
    staged = block.stage(KEY)
    for use in (block.view, lambda: block.stage(OTHER), block.__enter__):
        with pytest.raises(kvshm.Misuse, match="used up"):
            use()
    done = staged.register()
    for use in (staged.register, staged.reset, staged.view):
        with pytest.raises(kvshm.Misuse, match="used up"):
            use()
    weak = done.downgrade()
    for use in (done.view, done.clone, done.weak, done.downgrade, done.set_no_cache,
                lambda: done.set_priority(5)):
        with pytest.raises(kvshm.Misuse, match="used up"):
            use()
    assert not block.usable and not staged.usable and not done.usable
    for over in (block, staged, done):
        over.release()  # no harm
    assert weak.upgrade() is not None
    assert arena.stats().misuse_total == 0  # none of it reached the arena


@pytest.mark.parametrize("wrong", [
    {}, {"key": KEY, "tokens": [1]}, {"key": b"short"}, {"key": 7},
    {"key": KEY, "payload": b"short"}, {"key": KEY, "payload": 3}, {"key": bytes(16)}], ids=str)
def test_a_refused_stage_leaves_the_block_usable(arena, wrong):
    block = mutable(arena)
    block.view()[:4] = b"kept"
    try:
        block.stage(**wrong).register()
    except (kvshm.InvalidArgument, kvshm.Misuse):
        pass
    else:
        pytest.fail("was taken")
    if wrong.get("key") == bytes(16):
        return  # staged: refused at its registration
    assert block.usable and bytes(block.view()[:4]) == b"kept"
    assert block.stage(KEY).register().status == kvshm.Status.PRIMARY


def test_tokens_need_an_identity(arena):
    block = mutable(arena)
    with pytest.raises(kvshm.Misuse, match="identity"):
        block.stage(tokens=range(16))
    assert block.usable


def test_stage_by_tokens_and_parent(make_arena):
    ident = kvshm.Identity(model="m", weights="w", block_tokens=4)
    arena = make_arena(identity=ident)
    wanted = ident.keys(range(8), salt="s")
    first, second = (b for b in kvshm.mutable_blocks(arena, 2))
    first = first.stage(tokens=[0, 1, 2, 3], salt="s", payload=bytes(BLOCK))
    second = second.stage(tokens=[4, 5, 6, 7], parent=first.key, salt="s")
    assert [first.key, second.key] == [bytes(key) for key in wanted]


def test_a_refused_registration_leaves_the_block_usable(arena):
    staged = mutable(arena).stage(bytes(16))  # the key that is none
    with pytest.raises(kvshm.InvalidArgument):
        staged.register()
    assert staged.usable and gauges(arena)["filling"] == 1
    assert staged.reset().stage(KEY).register().status == kvshm.Status.PRIMARY


def test_a_batch_that_fails_in_the_middle(arena):
    blocks = [mutable(arena).stage(key) for key in (KEY, bytes(16), OTHER)]
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.register_blocks(blocks)
    assert [block.usable for block in blocks] == [False, True, True]
    assert list(arena.presence([KEY, OTHER])) == [1, 0]
    assert gauges(arena)["inactive"] == 1 and gauges(arena)["filling"] == 2
    with pytest.raises(kvshm.Misuse):
        kvshm.register_blocks([blocks[2], blocks[2]])
    with pytest.raises(kvshm.InvalidArgument):
        blocks[2].register("maybe") if blocks[2].usable else blocks[1].register("maybe")


def test_clones_hold_for_themselves(arena):
    done = mutable(arena).stage(KEY).register()
    clone = done.clone()
    done.release()
    assert gauges(arena)["held"] == 1 and bytes(clone.view()) == bytes(BLOCK)
    with clone:
        assert len(arena.match([KEY])) == 1
    assert gauges(arena)["inactive"] == 1


def test_a_duplicate_can_be_cloned_while_its_primary_is_held(arena):
    primary = mutable(arena).stage(KEY).register()
    duplicate = mutable(arena).stage(KEY).register()
    clone = duplicate.clone()
    primary.release()
    duplicate.release()
    assert gauges(arena)["held"] == 2  # the clone, and through it the primary
    clone.release()
    assert gauges(arena)["inactive"] == 1 and gauges(arena)["free"] == 15


def test_guards_that_die_give_back(arena):
    blocks = [mutable(arena), mutable(arena).stage(KEY), mutable(arena).stage(OTHER).register()]
    assert gauges(arena)["free"] == 13
    del blocks
    gc.collect()
    assert gauges(arena)["free"] == 15 and gauges(arena)["inactive"] == 1


def test_match_blocks(arena):
    for key in (KEY, OTHER):
        mutable(arena).stage(key, payload=content(key)).register().release()
    found = kvshm.match_blocks(arena, [KEY, OTHER, keys(1, 9)[0]])
    assert [bytes(block.view()) for block in found] == [content(KEY), content(OTHER)]
    assert gauges(arena)["held"] == 2
    del found
    assert gauges(arena)["held"] == 0


def test_mutable_blocks_are_all_or_nothing(arena):
    kept = kvshm.mutable_blocks(arena, 10)
    with pytest.raises(kvshm.NoSpace):
        kvshm.mutable_blocks(arena, 7)
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.mutable_blocks(arena, 1, keys=[KEY])
    assert len(kept) == 10 and gauges(arena)["free"] == 6


def test_two_threads_cannot_stage_one_block(arena):
    for _ in range(50):
        block = mutable(arena)
        barrier = threading.Barrier(2)
        got = []

        def stage():
            barrier.wait(10)
            try:
                got.append(block.stage(KEY))
            except kvshm.Misuse:
                pass

        threads = [threading.Thread(target=stage) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(got) == 1
        got.clear()
        assert gauges(arena)["filling"] == 1 if block.usable else gauges(arena)["filling"] == 0


@pytest.mark.parametrize("kind", [kvshm.MutableBlock, kvshm.CompleteBlock, kvshm.ImmutableBlock,
                                  kvshm.WeakBlock])
def test_guards_are_not_made_by_hand(kind):
    """Also not past __init__: a half-built guard has no arena to give its block back to."""
    for make in (kind, lambda: kind.__new__(kind), lambda: kind(object())):
        with pytest.raises(TypeError):
            make()
