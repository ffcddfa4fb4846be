# SPDX-License-Identifier: Apache-2.0
"""Objects between processes: whole or not there, whoever dies, and whoever else puts them."""
import hashlib

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, eventually, gauges, keys

KEY, OTHER = (bytes(key) for key in keys(2, seed=70))
SIZE = 5 * BLOCK + 77

_CHILD = """
    import hashlib, sys, kvshm, numpy as np
    arena = kvshm.Arena.attach(sys.argv[1])
    def data(seed):
        return np.random.default_rng(seed).integers(0, 256, int(sys.argv[2]), np.uint8).tobytes()
    open_ = []
    while True:
        order = hear()
        key = bytes.fromhex(order[1])
        if order[0] == "read":
            with arena.get_object(key) as one:
                say(hashlib.sha256(one).hexdigest())
        elif order[0] == "hold":
            open_.append(arena.get_object(key))
            say(hashlib.sha256(open_[-1]).hexdigest())
        elif order[0] == "begin":
            open_.append(arena.create_object(key, int(sys.argv[2])))
            open_[-1].write(0, data(order[2])[:5000])
            say("begun")
        elif order[0] == "put":
            try:
                say(arena.put_object(key, data(order[2])))
            except kvshm.Busy:
                say("busy")
"""


def data(seed):
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8).tobytes()


def digest(seed):
    return hashlib.sha256(data(seed)).hexdigest()


@pytest.fixture
def child(arena, worker):
    return lambda: worker(_CHILD, arena.name, SIZE)


def test_put_here_and_read_there(arena, child):
    assert arena.put_object(KEY, data(1))
    assert child().ask(["read", KEY.hex()]) == digest(1)
    assert child().ask(["put", OTHER.hex(), 2]) is True
    with arena.get_object(OTHER) as one:
        assert bytes(one) == data(2)


def test_a_putter_that_dies_leaves_nothing(arena, child):
    putter = child()
    putter.ask(["begin", KEY.hex(), 1])
    assert arena.get_object(KEY) is None
    with pytest.raises(kvshm.Busy):
        arena.create_object(KEY, SIZE)
    handle = arena.pending(KEY)
    putter.kill()
    assert arena.wait(handle, 10) is False  # over, without having become an object
    assert eventually(lambda: gauges(arena)["free"] == 16)
    assert arena.put_object(KEY, data(2))
    with arena.get_object(KEY) as one:
        assert bytes(one) == data(2)


def test_a_reader_that_dies_keeps_nothing(arena, child):
    arena.put_object(KEY, data(1))
    reader = child()
    assert reader.ask(["hold", KEY.hex()]) == digest(1)
    assert gauges(arena)["held"] == 6
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(11)
    reader.kill()
    assert eventually(lambda: gauges(arena)["held"] == 0)
    arena.allocate(16).abort()


def test_what_a_dead_process_put_stays(arena, child):
    putter = child()
    assert putter.ask(["put", KEY.hex(), 3]) is True
    putter.kill()
    with arena.get_object(KEY) as one:
        assert bytes(one) == data(3)


def test_of_two_that_put_it_at_once_one_does(arena, child):
    children = [child(), child()]
    for number, key in enumerate(keys(40, seed=71)):
        for seed, one in enumerate(children):
            one.say(["put", bytes(key).hex(), 2 * number + seed])
        answers = [one.hear() for one in children]
        assert answers.count(True) == 1 and set(answers) <= {True, False, "busy"}, answers
        with arena.get_object(key) as stored:
            assert bytes(stored) == data(2 * number + answers.index(True))
        assert arena.clear() == 6


_FORK = """
    import os, sys, kvshm
    arena = kvshm.Arena.attach(sys.argv[1])
    one = arena.get_object(bytes.fromhex(sys.argv[2]))
    piece = one.pieces()[0]
    pid = os.fork()
    if pid == 0:
        seen = []
        for use in (lambda: bytes(one), lambda: memoryview(one), one.pieces,
                    lambda: memoryview(piece.obj)):
            try:
                use()
                seen.append("no error")
            except kvshm.Forked:
                seen.append("Forked")
        os._exit(0 if seen == ["Forked"] * 4 else 1)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    say(len(bytes(one)))
    hear()
"""


def test_a_forked_child_has_none(arena, worker):
    arena.put_object(KEY, data(1))
    parent = worker(_FORK, arena.name, KEY.hex())
    assert parent.hear() == 0
    assert parent.hear() == SIZE
