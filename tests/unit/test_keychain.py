# SPDX-License-Identifier: Apache-2.0
"""KeyChain: the keys of a growing sequence equal those of the whole."""
import kvshm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

IDENT = kvshm.Identity(model="chain", weights="w", block_tokens=4)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=30), max_size=12))
@settings(max_examples=200, deadline=None)
def test_pieces_give_the_keys_of_the_whole(pieces):
    chain = kvshm.KeyChain(IDENT, salt="s", extra=b"e")
    new = [chain.extend(piece) for piece in pieces]
    tokens = [token for piece in pieces for token in piece]
    whole = IDENT.keys(tokens, salt="s", extra=b"e")
    assert np.array_equal(chain.keys, whole)
    assert np.array_equal(np.concatenate([np.empty((0, 16), np.uint8), *new]), whole)
    assert len(chain) == len(tokens) // 4 and chain.tokens == len(tokens)
    assert list(chain.tail) == tokens[len(tokens) // 4 * 4:]


def test_one_token_at_a_time():
    chain = kvshm.KeyChain(IDENT)
    made = [len(chain.extend([i])) for i in range(9)]
    assert made == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert "2 keys and 1 tokens" in repr(chain)


def test_after_a_parent():
    whole = IDENT.keys(range(16))
    chain = kvshm.KeyChain(IDENT, parent=whole[1])
    assert np.array_equal(chain.extend(range(8, 16)), whole[2:])


def test_a_refused_token_changes_nothing():
    chain = kvshm.KeyChain(IDENT)
    chain.extend([1, 2])
    with pytest.raises(kvshm.InvalidArgument, match=r"tokens\[1\]"):
        chain.extend([3, -1])
    chain.extend([3, 4])
    assert np.array_equal(chain.keys, IDENT.keys([1, 2, 3, 4]))


def test_refused_arguments():
    for wrong in ({"identity": None}, {"identity": IDENT, "parent": b"short"},
                  {"identity": IDENT, "salt": 5}):
        with pytest.raises((kvshm.InvalidArgument, TypeError)):
            kvshm.KeyChain(**wrong)


@pytest.mark.parametrize("tokens, place", [
    (np.array([1, 2, -3]), 2), (np.array([2**32, 1]), 0), ([5, 2**70], 1), ([1, -2**70], 1),
    (np.array([1, 2**64 - 1], np.uint64), 1), (np.array([1, -1], np.int8), 1)])
def test_the_position_of_a_bad_id_is_named(tokens, place):
    with pytest.raises(kvshm.InvalidArgument, match=rf"tokens\[{place}\]"):
        IDENT.keys(tokens)


@pytest.mark.torch
def test_torch_tensors():
    torch = pytest.importorskip("torch")
    tokens = list(range(1000, 1024))
    for dtype in (torch.int64, torch.int32, torch.int16):
        assert np.array_equal(IDENT.keys(torch.tensor(tokens, dtype=dtype)), IDENT.keys(tokens))
    with pytest.raises(kvshm.InvalidArgument):
        IDENT.keys(torch.tensor([1.5] * 8))
