# SPDX-License-Identifier: Apache-2.0
"""S08: a warm arena mapped at other addresses, by several processes at once."""
import pytest

ATTACH = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
taken = {taken!r}
for place, size in taken:   # PROT_NONE, private, anonymous, fixed unless something lies there
    libc.mmap(place, size, 0, 0x2 | 0x20 | 0x4000 | 0x100000, -1, 0)
begun = time.perf_counter()
a = kvshm.Arena.attach({name!r}, helper=False)
took = time.perf_counter() - begun
def where():
    with a.match(raw_keys(0, 1)) as m, m.view(0) as v:
        data = np.frombuffer(v, np.uint8).ctypes.data - m.ids[0].item() * a.block_bytes
        return data - a.info().data_offset
"""


def fill(one, name, blocks):
    one.do(f"""
        a = kvshm.Arena.create({name!r}, blocks={blocks}, block_bytes=64)
        for first in range(0, {blocks}, 1000):
            store(a, raw_keys(first, 1000)).release()
    """, 60)


@pytest.mark.slow
def test_addresses(player, new_name, rounds):
    blocks = rounds(10_000, 50_000)
    name, small = new_name(), new_name()
    owner = player()
    fill(owner, small, blocks // 10)
    fill(owner, name, blocks)
    owner.do("extent = a.info().bytes; a.close()")
    extent = owner.get("extent")
    first = player()
    first.do(ATTACH.format(name=name, taken=[]))
    used = [first.get("where()")]
    others = []
    for _ in range(4):
        one = player()
        one.do(ATTACH.format(name=name, taken=[(u, extent) for u in used]))
        used.append(one.get("where()"))
        others.append(one)
    assert len(set(used)) == 5, "five different addresses"
    check = ("[verify(a.match(raw_keys(n, 500)), raw_keys(n, 500)) "
             f"for n in range(0, {blocks}, 500)]")
    count = f"sum(len(a.match(raw_keys(n, 500))) for n in range(0, {blocks}, 500))"
    for one in others:
        one.send(check, "get")
    for one in others:
        assert one.answer(50) == [[]] * (blocks // 500)
        assert one.get(count) == blocks
        assert one.get("a.is_valid()") == []
    # Attaching to ten times the blocks costs at most ten times as much (and a constant).
    brief = player()
    brief.do(ATTACH.format(name=small, taken=[]))
    assert others[-1].get("took") < 10 * brief.get("took") + 0.25
