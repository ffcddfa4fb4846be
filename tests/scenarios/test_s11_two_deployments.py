# SPDX-License-Identifier: Apache-2.0
"""S11: two deployments on one host never share by accident, and never hurt each other."""
import os

import kvshm
import pytest
from support.users import ALICE, BOB, become, need_root

P = f"kvshm.Identity(model='p-{os.getpid()}', weights='w')"
Q = f"kvshm.Identity(model='q-{os.getpid()}', weights='w')"
OPEN = "ident = {}; a = kvshm.Arena.open(identity=ident, blocks=64, block_bytes=4096)"


@pytest.fixture
def removed():
    """Removes automatic names that a test made."""
    names = []
    yield names
    for name in names:
        try:
            kvshm.remove(name, force=True)
        except kvshm.ArenaNotFound:
            pass


def play(p, q, names):
    p_name, q_name = p.get("a.name"), q.get("a.name")
    names += [p_name, q_name]
    assert p_name != q_name
    q.do("lease = store(a, ident.keys(list(range(160))))")
    p.do("lease = store(a, ident.keys(list(range(160))))")
    before = q.get("dict(a.stats())")
    p.kill()
    kvshm.remove(p_name)
    assert q.get("dict(a.stats())") == before, "the end of P changes no figure of Q"
    assert q.get("len(lease) == 10 and verify(lease, ident.keys(list(range(160)))) == []")
    q.do("store(a, ident.keys(list(range(1000, 1160)))).release()")
    assert q.get("a.is_valid()") == []


@pytest.mark.crash
def test_defaults_under_one_user(player, removed):
    p, q = player(), player()
    p.do(OPEN.format(P))
    q.do(OPEN.format(Q))
    play(p, q, removed)


@pytest.mark.crash
def test_defaults_under_two_users(player, removed):
    need_root()
    p, q = player(), player()
    p.do(become(ALICE) + "; " + OPEN.format(P))
    q.do(become(BOB) + "; " + OPEN.format(P))  # even for the same model
    play(p, q, removed)


def test_one_name_for_two_models(player, arena_name):
    p, q = player(), player()
    p.do(f"ident = {P}; a = kvshm.Arena.open({arena_name!r}, identity=ident, blocks=64, "
         "block_bytes=4096); lease = store(a, ident.keys(list(range(32))))")
    error = q.fails(f"kvshm.Arena.open({arena_name!r}, identity={Q}, blocks=64, block_bytes=4096)")
    assert error.kind == "IdentityMismatch"
    assert f"p-{os.getpid()}" in error.text and f"q-{os.getpid()}" in error.text
    assert "another name" in error.text
    assert q.fails(f"kvshm.remove({arena_name!r})").kind == "Busy"
    assert p.get("verify(lease, ident.keys(list(range(32))))") == []
    assert p.get("a.stats().slots_used") == 1, "the refusal took no slot"
