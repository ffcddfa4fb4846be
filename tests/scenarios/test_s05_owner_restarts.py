# SPDX-License-Identifier: Apache-2.0
"""S05, S06: the arena is replaced under readers that hold blocks, or that sleep."""
import time

import kvshm
import pytest

READER = """
a = kvshm.Arena.attach({name!r}, reap_interval=0.05)
lease = a.match(raw_keys({first}, 100))
assert len(lease) == 100
def reread(times=5):
    return [verify(lease, raw_keys({first}, 100)) for _ in range(times)] == [[]] * times
"""


def make(one, name, blocks):
    one.do(f"""
        a = kvshm.Arena.create({name!r}, blocks={blocks}, block_bytes=4096)
        store(a, raw_keys(0, 200)).release()
    """)


@pytest.mark.crash
@pytest.mark.parametrize("end", ["clean", "SIGKILL"])
def test_owner_restarts_under_readers(player, arena_name, end):
    owner, readers = player(), [player(), player()]
    make(owner, arena_name, 256)
    for i, reader in enumerate(readers):
        reader.do(READER.format(name=arena_name, first=100 * i))
    if end == "clean":
        owner.do("a.close()")
        assert owner.end() == 0
    else:
        owner.kill()
    assert all(reader.get("reread()") for reader in readers)
    with pytest.raises(kvshm.Busy):  # readers are attached: replaced only on purpose
        kvshm.remove(arena_name)
    for reader in readers:
        reader.send("[reread() for _ in range(20)]", "get")
    kvshm.remove(arena_name, force=True)
    new = player()
    make(new, arena_name, 512)  # another size
    for reader in readers:
        assert all(reader.answer()), "right bytes while it was replaced"
    for i, reader in enumerate(readers):
        assert reader.get("reread()")
        for call in ("a.match(raw_keys(0, 1))", "a.allocate(1)", "a.presence(raw_keys(0, 1))",
                     "a.evict(raw_keys(0, 1))"):
            error = reader.fails(call)
            assert error.kind == "ArenaReplaced", call
            assert arena_name in error.text and "open again" in error.text
        assert reader.get("reread()"), "the refusals took nothing away"
        reader.do("lease.release(); a.close()")
        reader.do(READER.format(name=arena_name, first=100 * i))
        assert reader.get("reread() and a.blocks == 512")
    assert new.get("a.is_valid()") == []


@pytest.mark.crash
@pytest.mark.parametrize("end", ["clean", "SIGKILL"])
def test_replaced_faster_than_a_heartbeat(player, arena_name, end):
    """S06. The idle client has no way to notice before its next call."""
    owner, client = player(), player()
    make(owner, arena_name, 256)
    client.do(READER.format(name=arena_name, first=0))
    client.do("old = lease.handles; weak = a.match(raw_keys(100, 50)); seen = weak.handles; "
              "weak.release()")
    if end == "clean":
        owner.do("a.close()")
    else:
        owner.kill()
    started = time.monotonic()
    kvshm.remove(arena_name, force=True)
    new = kvshm.Arena.create(arena_name, blocks=256, block_bytes=4096)
    assert time.monotonic() - started < 0.5, "faster than any heartbeat"
    with new:
        from support.oracle import raw_keys, store
        store(new, raw_keys(5000, 200)).release()  # the same ids, other keys
        assert client.fails("store(a, raw_keys(900, 1))").kind == "ArenaReplaced"
        client.do("""
            begun = time.monotonic()
            b = kvshm.Arena.open(a.name, blocks=256, block_bytes=4096)
            fresh = store(b, raw_keys(900, 1))
            took = time.monotonic() - begun
        """)
        assert client.get("took") < 1
        # What was weak in the old arena must not become strong in the new one.
        assert client.get("[b.upgrade(h) is None for h in seen]") == [True] * 50
        assert client.get("b.pin(seen[:1]) is None")
        assert client.get("verify(lease, raw_keys(0, 100))") == []
        client.do("lease.release(); a.close()")
        assert client.get("verify(fresh, raw_keys(900, 1))") == []
        assert new.stats().blocks_held == 1 and new.is_valid() == []
