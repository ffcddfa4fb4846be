# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store over TCP on this host: a master of our own, and a client that lends it memory and
asks. A look-up gives the objects that it finds a lease, which is what pins them; it ends by
itself, so there is nothing to release."""

from __future__ import annotations

import sys
from pathlib import Path

import driver
import mooncake
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
START_SECONDS = 60.0
LEASE = "600s"  # nothing is evicted in between
PUT_AT_ONCE = 512


def main() -> None:
    out = driver.protect_stdout()
    block = int(sys.argv[1])
    asked = {shape.tokens: driver.requests(shape, block) for shape in driver.shapes(sys.argv[2])}
    port, metrics, own = driver.free_ports(3)
    master = driver.start(
        [str(Path(str(mooncake.__file__)).parent / "mooncake_master"), "--rpc_address=127.0.0.1",
         f"--rpc_port={port}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}",
         f"--default_kv_lease_ttl={LEASE}"])
    store = MooncakeDistributedStore()
    try:
        driver.wait_for(port, master, START_SECONDS)
        failed = store.setup(f"127.0.0.1:{own}", "P2PHANDSHAKE", 512 * MIB, 64 * MIB, "tcp", "",
                             f"127.0.0.1:{port}")
        if failed:
            driver.fail(f"setup of the client: {failed}")
        for one in (one for some in asked.values() for one in some):
            keys = keys_of(one.hashes)
            for at in range(0, len(keys), PUT_AT_ONCE):
                part = keys[at:at + PUT_AT_ONCE]
                failed = store.put_batch(part, [b"x" * 64] * len(part))
                if failed:
                    driver.fail(f"put of {len(part)} blocks: {failed}")

        def look(keys: list[str]) -> tuple[int, None]:
            there = store.batch_is_exist(keys)
            return next((i for i, one in enumerate(there) if one != 1), len(there)), None

        def release(_: None) -> None:
            pass

        sources: dict[str, driver.Source] = {
            "keys": (lambda one: keys_of(one.hashes), look, release),
            "hashes": (lambda one: one.hashes, lambda h: look(keys_of(h)), release),
            "tokens": (lambda one: one.tokens,
                       lambda t: look(keys_of(driver.engine_hashes(t, block))), release),
        }
        driver.serve(out, {}, asked, sources)
    finally:
        store.close()
        driver.end(master)


def keys_of(hashes: list[bytes]) -> list[str]:
    return [f"bench@0@{one.hex()}" for one in hashes]


if __name__ == "__main__":
    main()
