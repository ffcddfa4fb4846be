# SPDX-License-Identifier: Apache-2.0
"""Run by a Python that has kvshm from a wheel; argv[1] names an arena. Says what it is, as JSON."""
import importlib
import json
import pkgutil
import sys

import kvshm

ENGINE = ("vllm", "torch", "prometheus_client")


def every_module():
    """Imports all that needs no extra; returns their number."""
    count = 0
    for found in pkgutil.walk_packages(kvshm.__path__, "kvshm.", onerror=lambda _: None):
        if not found.name.startswith(("kvshm.tools", "kvshm.capi", "kvshm._capi", "kvshm._uring",
                                      "kvshm.lib")):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                # A connector's modules need their engine; its package itself needs nothing.
                if not found.name.startswith("kvshm.connectors.vllm.") or error.name not in ENGINE:
                    raise
            count += 1
    return count


def life_of_a_block(name):
    identity = kvshm.Identity(model="m", weights="w", dtype="uint8", layout="x", block_tokens=4)
    keys = identity.keys(range(8))
    with kvshm.Arena.create(name, blocks=4, block_bytes=4096, identity=identity,
                            pin="off") as arena:
        with arena.allocate(2, keys=keys) as fill:
            fill.view(0)[:5] = b"hello"
            fill.register().release()
        with arena.match(keys) as hit:
            text = bytes(memoryview(hit.view(0))[:5]).decode()
            try:
                hit.view(5)
                refused = False
            except (IndexError, kvshm.Error):
                refused = True
            return {"hits": len(hit), "text": text, "refused": refused}


def main():
    said = {"python": "%d.%d" % sys.version_info[:2], "file": kvshm.__file__,
            "version": kvshm.__version__, "modules": every_module()}
    print(json.dumps({**said, **life_of_a_block(sys.argv[1])}))


if __name__ == "__main__":
    main()
