# SPDX-License-Identifier: Apache-2.0
"""Disk parts of S18, S21-S23, S29, S34, S36, S42, S67, S75: what holds in memory holds there."""
import os
import stat
import time

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, content, eventually, keys, make_arena, store  # noqa: F401
from support.cli import kvshm_cli
from support.users import MALLORY, become, need_root

IDENTITY = dict(model="llama", weights="sha256:" + "1" * 64, dtype="bfloat16", layout="BLHNC",
                parallel="tp1", block_tokens=16)
TOKENS = np.arange(16 * 8, dtype=np.uint32)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "kv.tier")


@pytest.fixture
def tiered(make_arena, path):  # noqa: F811
    """tiered(blocks=16, ...): an arena with a tier of 4 MiB that is ready."""
    def make(blocks=16, **options):
        arena = make_arena(blocks, **{"tier": path, "tier_size": "4MiB", **options})
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        return arena
    return make


def to_disk(arena, wanted):
    """Stored, written down, and gone from memory."""
    store(arena, wanted).release()
    assert arena.tier_drain(10)
    assert arena.evict(wanted) == len(wanted)


def load(arena, wanted, size=BLOCK):
    """Blocks that are held after a load, all with the bytes of their keys."""
    with arena.match(wanted, load=True) as lease:
        assert lease.wait(10)
        for i in range(len(lease)):
            assert bytes(lease.view(i)[:]) == content(wanted[i], size)
        return len(lease)


def test_s18_a_slow_reader_under_loads(tiered):
    """Other blocks come up from the disk again and again, into every block that nobody holds."""
    arena = tiered(16)
    held = keys(4, seed=1)
    others = [keys(6, seed=10 + i) for i in range(6)]
    for other in others:
        to_disk(arena, other)
    with store(arena, held) as lease:
        halves = [bytes(lease.view(i)[:BLOCK // 2]) for i in range(4)]
        for i in range(60):
            assert load(arena, others[i % 6]) == 6
        for i, key in enumerate(held):
            assert halves[i] + bytes(lease.view(i)[BLOCK // 2:]) == content(key)


@pytest.mark.slow
def test_s22_a_stopped_reader_of_loaded_blocks(player, arena_name, path):
    """Stopped for longer than every interval while all else is replaced from the disk."""
    reader, other = player(), player()
    opened = f"""
        from support.arenas import content, store
        a = kvshm.Arena.open({arena_name!r}, blocks=16, block_bytes={BLOCK}, reap_interval=0.05,
                             tier={path!r}, tier_size="4MiB")
        while a.tier.state != kvshm.TierState.OK: time.sleep(0.01)
    """
    other.do(opened + """
        sets = [raw_keys(100 * i, 6) for i in range(6)]
        for s in sets:
            store(a, s).release()
            assert a.tier_drain(10)
            a.evict(s)
    """)
    reader.do(opened + """
        lease = a.match(raw_keys(0, 6), load=True)
        assert lease.wait(10) and len(lease) == 6
    """)
    reader.worker.stop()
    other.do("""
        for i in range(100):
            with a.match(sets[1 + i % 5], load=True) as l:
                assert l.wait(10) and len(l) == 6, len(l)
    """)
    time.sleep(0.5)
    reader.worker.resume()
    assert reader.get(
        "all(bytes(lease.view(i)[:]) == content(raw_keys(0, 6)[i]) for i in range(6))")
    for one in reader, other:
        one.do("a.close()")
    kvshm.remove(arena_name)


@pytest.mark.parametrize("how", ["abort", "exception", "close"])
def test_s21_an_aborted_key_never_reaches_the_disk(tiered, how):
    """Nor its children: they were never written."""
    arena = tiered()
    wanted = keys(3, seed=7)
    if how == "close":
        other = kvshm.Arena.attach(arena.name, helper=False)
        other.allocate(3, keys=wanted).view(0)[:16] = b"x" * 16
        other.close()
    elif how == "abort":
        fill = arena.allocate(3, keys=wanted)
        fill.view(0)[:16] = b"x" * 16
        fill.abort()
    else:
        with pytest.raises(ZeroDivisionError), arena.allocate(3, keys=wanted) as fill:
            fill.view(0)[:16] = b"x" * 16
            raise ZeroDivisionError
    assert arena.tier_drain(10)
    assert arena.stats().tier_offered_total == 0
    assert arena.presence(wanted).tolist() == [0, 0, 0]
    assert load(arena, wanted) == 0


@pytest.mark.parametrize("hold", [True, False])
def test_s23_what_was_promised_loads(tiered, hold):
    """Held: all of it, whatever the others push through. Not held: the shorter prefix, no error."""
    arena = tiered(16)
    wanted = keys(6, seed=3)
    to_disk(arena, wanted)
    lease = arena.match(wanted, load=True)
    assert lease.promised == 6
    if not hold:
        assert lease.wait(10)
        lease.release()
    for i in range(12):  # the whole cache, and the whole disk's worth, twice
        store(arena, keys(8, seed=50 + i)).release()
    if hold:
        assert lease.wait(10) and len(lease) == 6
        assert all(bytes(lease.view(i)[:]) == content(wanted[i]) for i in range(6))
        lease.release()
    else:
        with arena.match(wanted) as again:
            assert len(again) < 6


CHANGES = {"model": "other", "weights": "sha256:" + "2" * 64, "dtype": "float16",
           "layout": "NHBLC", "parallel": "tp2", "block_tokens": 32, "namespace": "b"}


@pytest.mark.parametrize("changed", CHANGES)
def test_s29_another_identity_finds_nothing_on_disk(new_name, path, changed):
    """The file says whose it is, and is left alone."""
    first = kvshm.Identity(**IDENTITY)
    second = kvshm.Identity(**{**IDENTITY, changed: CHANGES[changed]})

    def opened(identity):
        return kvshm.Arena.open(new_name(), blocks=32, block_bytes=BLOCK, identity=identity,
                                pin="off", tier=path, tier_size="1MiB")

    with opened(first) as arena:
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        store(arena, first.keys(TOKENS)).release()
        assert arena.tier_drain(10)
    assert not (set(map(bytes, first.keys(TOKENS))) & set(map(bytes, second.keys(TOKENS))))
    with pytest.raises(kvshm.IdentityMismatch, match="another identity"):
        opened(second)
    with opened(first) as arena:  # and nothing of it was touched
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        assert load(arena, first.keys(TOKENS)) == 8


@pytest.mark.parametrize("salt", [None, "b"])
def test_s34_another_salt_finds_nothing_on_disk(tiered, salt):
    """Nor can it tell, by any call, that there is something."""
    identity = kvshm.Identity(**IDENTITY)
    arena = tiered(identity=identity)
    mine, theirs = identity.keys(TOKENS, salt="a"), identity.keys(TOKENS, salt=salt)
    to_disk(arena, mine)
    assert (arena.presence(mine) == kvshm.Presence.G3).all()
    assert arena.presence(theirs).tolist() == [0] * 8
    with arena.match(theirs, load=True) as lease:
        assert (lease.promised, lease.loading) == (0, 0)
    assert load(arena, identity.keys(TOKENS, salt="a")) == 8


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_s36_rights_of_the_file(tiered, path, umask):
    """0600 whatever the umask: another user may not open, read, write or truncate it."""
    before = os.umask(umask)
    try:
        arena = tiered()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    image = arena.path + "-g3"
    assert stat.S_IMODE(os.stat(image).st_mode) == 0o600


def test_s36_another_user_may_not(tiered, path, player):
    need_root()
    os.chmod(os.path.dirname(path), 0o755)
    tiered()
    mallory = player()
    mallory.do(become(MALLORY))
    for call in (f"open({path!r}, 'rb')", f"open({path!r}, 'r+b')", f"os.truncate({path!r}, 0)",
                 f"os.unlink({path!r})"):
        assert mallory.fails(call).kind == "PermissionError", call


@pytest.mark.slow
def test_s42_many_keys_through_a_small_cache(tiered, rounds):
    """200,000 distinct keys (2 million in full) through 2,000 blocks, and as many slots: neither
    index nor process grows, and who has left memory and disk leaves no entry behind."""
    arena = tiered(2000, block_bytes=64, tier_size="9MiB", tier_options={"queue": 2048})
    total, batch = rounds(200_000, 2_000_000), 1000
    sizes = []
    for i in range(total // batch):
        wanted = keys(batch, seed=1000 + i)
        with arena.allocate(batch, keys=wanted, chained=False) as fill:
            fill.register().release()
        if i % 20 == 19:
            assert arena.tier_drain(20)
            sizes.append(_resident_kib())
    stats, tier = arena.stats(), arena.tier
    assert stats.tier_stored_total > 2 * tier.slots  # else the disk was hardly part of it
    assert stats.blocks_free + stats.blocks_inactive == 2000
    assert tier.ready <= tier.slots
    assert sizes[-1] < sizes[len(sizes) // 2] + 4096, sizes
    gone = keys(batch, seed=1000)
    assert arena.presence(gone).sum() == 0
    with kvshm.Arena.attach(tier.image, helper=False) as image:
        assert image.is_valid() == []


def _resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def test_s75_flush_means_the_disk_too(new_name, path):
    """A bump of the epoch: nothing older is found in memory or on disk, what was on its way
    included, by another process, and after a reboot; other keys are untouched by a restart."""
    def opened(name, epoch=None):
        arena = kvshm.Arena.open(name, blocks=32, block_bytes=BLOCK, pin="off",
                                 identity=kvshm.Identity(**IDENTITY, epoch=epoch or 0),
                                 tier=path, tier_size="1MiB")
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        return arena

    name = new_name()
    with opened(name) as arena:
        old = kvshm.Identity(**IDENTITY, epoch=arena.epoch)
        store(arena, old.keys(TOKENS)).release()
        assert arena.tier_drain(10)
        lease = arena.match(old.keys(TOKENS), load=True)  # under way, or held
        epoch = arena.bump_epoch()
        lease.wait(10)
        lease.release()
        new = kvshm.Identity(**IDENTITY, epoch=epoch)
        assert arena.presence(new.keys(TOKENS)).sum() == 0
        with arena.match(new.keys(TOKENS), load=True) as nothing:
            assert nothing.promised == 0
        store(arena, new.keys(TOKENS[:32])).release()
        assert arena.tier_drain(10)
        time.sleep(1.2)  # the file has the epoch within half a second
    kvshm.remove(name)
    with opened(new_name(), epoch) as arena:
        assert arena.epoch == epoch  # who keys under it finds nothing older
        assert load(arena, new.keys(TOKENS)) == 2


def test_s75_a_tier_cleared_now(tiered):
    arena = tiered()
    wanted = keys(6, seed=2)
    to_disk(arena, wanted)
    assert arena.tier_clear(10) == 6
    assert arena.presence(wanted).sum() == 0
    assert load(arena, wanted) == 0


def test_s67_slots_that_lost_their_heads_are_counted(tiered):
    """Chains on disk, of some the first two slots gone: found no more, and `kvshm stat` counts
    what lies behind."""
    arena = tiered(256)
    chains = [keys(16, seed=100 + i) for i in range(12)]
    for chain in chains:
        to_disk(arena, chain)
    image = arena.tier.image
    assert tally(image) == dict(cached_blocks=192, unreachable_blocks=0, unreachable_share=0.0)
    with kvshm.Arena.attach(image, helper=False, pin="off") as slots:
        for chain in chains[:5]:
            assert slots.evict(chain[:2]) == 2
    assert tally(image)["unreachable_blocks"] == 5 * 14
    for i, chain in enumerate(chains):
        assert load(arena, chain) == (0 if i < 5 else 16)


def tally(name):
    said = kvshm_cli("stat", "--json", name)
    assert said.code == 0, said
    return said.json["chains"]
