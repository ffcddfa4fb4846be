# SPDX-License-Identifier: Apache-2.0
"""Semantics 9-11: staging a block."""
import kvshm
import pytest
from support.arenas import BLOCK, content, keys

IDENT = {"model": "staged", "weights": "w", "block_tokens": 16}


@pytest.mark.semantics(9)
@pytest.mark.parametrize("wrong", [BLOCK - 1, BLOCK + 1, 0])
def test_s09_a_payload_of_wrong_size_is_refused_and_the_block_stays(arena, wrong):
    block, = kvshm.mutable_blocks(arena)
    before = block.handle
    with pytest.raises(kvshm.InvalidArgument) as refused:
        block.stage(keys(1)[0], payload=bytes(wrong))
    assert (refused.value.expected, refused.value.actual) == (BLOCK, wrong)
    assert str(BLOCK) in str(refused.value) and str(wrong) in str(refused.value)
    assert block.handle == before and block.usable
    done = block.stage(keys(1)[0], payload=content(keys(1)[0])).register()
    assert done.id == before.id and len(done.view()) == BLOCK
    assert bytes(done.view()) == content(keys(1)[0])


@pytest.mark.semantics(9)
@pytest.mark.parametrize("wrong", [15, 17, 0])
def test_s09_a_wrong_number_of_tokens_is_refused_and_the_block_stays(make_arena, wrong):
    arena = make_arena(identity=kvshm.Identity(**IDENT))
    block, = kvshm.mutable_blocks(arena)
    before = block.handle
    with pytest.raises(kvshm.InvalidArgument) as refused:
        block.stage(tokens=list(range(wrong)))
    assert (refused.value.expected, refused.value.actual) == (16, wrong)
    assert block.handle == before
    assert block.stage(tokens=list(range(16))).register().id == before.id


@pytest.mark.semantics(10)
def test_s10_staging_again_gives_the_same_key_and_block(make_arena):
    ident = kvshm.Identity(**IDENT)
    arena = make_arena(identity=ident)
    block, = kvshm.mutable_blocks(arena)
    first = block.stage(tokens=list(range(16)), salt="tenant")
    key, handle = first.key, first.handle
    again = first.reset().stage(tokens=list(range(16)), salt="tenant")
    assert (again.key, again.handle) == (key, handle)
    assert key == bytes(ident.keys(range(16), salt="tenant")[0])
    assert again.reset().stage(tokens=list(range(1, 17)), salt="tenant").key != key


@pytest.mark.semantics(11)
def test_s11_block_sizes_are_powers_of_two_up_to_1024(new_name):
    for size in (1 << n for n in range(11)):
        ident = kvshm.Identity(model="sizes", weights="w", block_tokens=size)
        name = new_name()
        with kvshm.Arena.create(name, blocks=2, block_bytes=64, identity=ident) as arena:
            assert arena.identity.block_tokens == size
        kvshm.remove(name)
    for size in (0, 3, 2048):
        with pytest.raises(kvshm.InvalidArgument):
            kvshm.Identity(model="sizes", weights="w", block_tokens=size)
