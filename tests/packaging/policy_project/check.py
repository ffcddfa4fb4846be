"""Uses each policy on an arena of its own, named by argv[1]. Says what went, as JSON."""
import json
import sys

import kv_policies
import kvshm
from kvshm import eviction

BLOCK = 4096


def store(arena, keys, **options):
    with arena.allocate(len(keys), keys=keys, **options) as fill:
        for i in range(len(fill)):
            fill.view(i)[:] = bytes([i]) * BLOCK
        fill.register().release()


def evicted(arena, n):
    """The keys that n allocations of one block push out, in their order."""
    fills, order = [], []
    for _ in range(n):
        fills.append(arena.allocate(1))
        order += [bytes(key) for key in fills[-1].evicted]
    for fill in fills:
        fill.abort()
    return order


def heads(arena, identity):
    """Two chains of eight fill the arena; half of each is all that may be marked."""
    chains = [identity.keys(range(at, at + 32)) for at in (0, 1000)]
    for chain in chains:
        store(arena, chain)
    keeper = kv_policies.HeadKeeper(arena)
    marked = keeper.run(16)
    gone = evicted(arena, marked)
    stay = [arena.match(chain) for chain in chains]
    left = [len(lease) for lease in stay]
    for lease in stay:
        lease.release()
    return {"marked": marked, "oldest_first": gone == [
        bytes(key) for chain in chains for key in chain[:keeper.head - 1:-1]], "left": left}


def fair(arena, identity):
    """Tenant 2 has twelve blocks, tenant 1, older, has four: tenant 2 pays."""
    few, many = identity.keys(range(2000, 2016)), identity.keys(range(3000, 3048))
    for key in few:
        store(arena, [key], tenant=1)
    for key in many:
        store(arena, [key], tenant=2)
    marker = kv_policies.FairMarker(arena, low=4, high=6)
    reports = [marker.run_once(), marker.run_once()]
    gone = evicted(arena, 6)
    return {"marked": [report.marked for report in reports], "in_all": marker.marked_in_all,
            "of_the_large": sum(key in {bytes(one) for one in many} for key in gone),
            "few_left": int((arena.presence(few) == 1).sum())}


def table(arena):
    now = eviction.set_policy(arena, kv_policies.HalfLife(2))
    return {"name": now.name, "shift": list(now.shift), "version": now.version}


def main():
    identity = kvshm.Identity(model="m", weights="w", dtype="uint8", layout="x", block_tokens=4)
    with kvshm.Arena.create(sys.argv[1], blocks=16, block_bytes=BLOCK, identity=identity,
                            pin="off") as arena:
        said = {"kvshm": kvshm.__file__, "heads": heads(arena, identity)}
        arena.clear()
        said["fair"] = fair(arena, identity)
        said["table"] = table(arena)
        said["broken"] = [str(one) for one in arena.is_valid()]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
