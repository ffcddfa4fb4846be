# SPDX-License-Identifier: Apache-2.0
"""Redis over a unix socket: a script in the server finds the prefix and counts up its pins, which
is one round trip for a request and the least that a client can send."""

from __future__ import annotations

import sys
from typing import Any

import driver
import redis

LOOK = """
local n = 0
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then break end
  redis.call('HINCRBY', 'pins', KEYS[i], 1)
  n = i
end
return n
"""
RELEASE = """
for i = 1, #KEYS do redis.call('HINCRBY', 'pins', KEYS[i], -1) end
"""


def main() -> None:
    out = driver.protect_stdout()
    block, path = int(sys.argv[1]), sys.argv[3]
    client = redis.Redis(unix_socket_path=path, socket_timeout=60)
    client.flushall()
    asked = {shape.tokens: driver.requests(shape, block) for shape in driver.shapes(sys.argv[2])}
    for one in (one for some in asked.values() for one in some):
        with client.pipeline(transaction=False) as pipe:
            for key in keys_of(one.hashes):
                pipe.set(key, b"x" * 64)
            pipe.execute()
    find, drop = client.register_script(LOOK), client.register_script(RELEASE)

    def look(keys: list[bytes]) -> tuple[int, Any]:
        return int(find(keys=keys)), keys

    def release(keys: list[bytes]) -> None:
        drop(keys=keys)

    sources: dict[str, driver.Source] = {
        "keys": (lambda one: keys_of(one.hashes), look, release),
        "hashes": (lambda one: one.hashes, lambda h: look(keys_of(h)), release),
        "tokens": (lambda one: one.tokens,
                   lambda t: look(keys_of(driver.engine_hashes(t, block))), release),
    }
    version = f"redis-py {redis.__version__}, server {client.info('server')['redis_version']}"
    driver.serve(out, {"version": version}, asked, sources)


def keys_of(hashes: list[bytes]) -> list[bytes]:
    return [b"bench:" + one for one in hashes]


if __name__ == "__main__":
    main()
