# SPDX-License-Identifier: Apache-2.0
"""S21: aborted before it was committed: the key, and what would build on it, stay misses."""
import pytest

NEIGHBOUR = """
import sys
import kvshm
from support.oracle import *
a = kvshm.Arena.attach(sys.argv[1], helper=False)
say("looking")
seen, n, wrong = 0, 0, []
while True:
    n += 1
    first = n * 4 % 400
    with a.match(raw_keys(first, 4)) as m:      # the aborted keys and their children
        seen += len(m)
        wrong += verify(m, raw_keys(first, 4))
    a.presence(raw_keys(first, 4))
    try:
        with a.allocate(2, keys=raw_keys(10_000 + n, 2)) as f:   # the same slots
            write(a, f, raw_keys(10_000 + n, 2))
            f.register().release()
    except kvshm.NoSpace:
        pass
    if n % 1000 == 0:
        say([n, seen, wrong])
"""


def answers(one):
    """The last that it has said; it is stopped for this."""
    last = one.hear()
    one.kill()
    try:
        while True:
            last = one.hear(0.5)
    except AssertionError:
        return last


@pytest.mark.crash
@pytest.mark.slow
def test_aborted_keys(player, start, arena_name, rounds):
    owner = player()
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=32, block_bytes=1024, "
             "reap_interval=0.05)")
    neighbours = [start(NEIGHBOUR, arena_name) for _ in range(2)]
    for one in neighbours:
        assert one.hear() == "looking"
    writer = None
    for number in range(rounds(12, 100)):
        first = number * 4 % 400
        if writer is None:
            writer = player()
            writer.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False)")
        # parent first, three that build on it; a part is written
        fill = (f"f = a.allocate(4, keys=raw_keys({first}, 4), timeout=5); "
                f"f.copy_in(0, payload(raw_keys({first}, 1)[0], 512, 0))")
        how = ("call", "exception", "death")[number % 3]
        if how == "call":
            writer.do(fill + "; f.abort()")
        elif how == "exception":
            assert writer.fails(fill + "\nwith f:\n    raise ValueError('x')").kind == "ValueError"
        else:
            writer.do(fill)
            writer.kill()
            writer = None
            owner.do("a.reap()")
        assert owner.get(f"len(a.match(raw_keys({first}, 4)))") == 0
        for child in range(1, 4):
            assert owner.get(f"len(a.match(raw_keys({first + child}, 1)))") == 0
        if how != "death":
            assert owner.get(f"int(a.presence(raw_keys({first}, 4)).sum())") == 0
    assert owner.get("min((a.is_valid() for _ in range(3)), key=len)") == []
    for one in neighbours:
        n, seen, wrong = answers(one)
        assert n > 0 and seen == 0 and wrong == [], "nobody ever saw an aborted key"
    owner.do("a.reap()")
    assert owner.get("a.is_valid()") == []
    # Another process commits it itself: then it is there.
    owner.do("lease = store(a, raw_keys(0, 4))")
    assert owner.get("verify(lease, raw_keys(0, 4))") == []
