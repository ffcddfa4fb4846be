# SPDX-License-Identifier: Apache-2.0
"""llama.cpp processes that share the state of a prompt through a kvshm arena.

Without a role, two processes of this program run one after the other: the first computes a prompt
and leaves its state in the arena, the second finds it there. Both end with the logits of the next
token, which are compared bit by bit.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kvshm
import llama
import numpy as np
import tiny_model

CHUNK = 64  # tokens: a state is kept for a prompt's whole chunks


def prompt(n: int) -> list[int]:
    return [3 + (7 * i * i + 11 * i) % 256 for i in range(n)]


def identity(model: Path) -> kvshm.Identity:
    # A state fits the build of llama.cpp that wrote it, and no other.
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    return kvshm.Identity(model="llama.cpp", weights=digest, layout=f"{llama.VERSION} sequence",
                          block_tokens=CHUNK)


def serve(args: argparse.Namespace) -> dict[str, Any]:
    """The logits after the prompt, its state taken from the arena or left there."""
    tokens = prompt(args.tokens)
    whole = len(tokens) // CHUNK * CHUNK
    ident = identity(args.model)
    key = ident.keys(tokens[:whole])[-1].tobytes()
    engine = llama.Llama(args.model, context=args.tokens + CHUNK)
    said: dict[str, Any] = {}
    with kvshm.Arena.open(args.arena, size="64MiB", block_bytes=args.block_bytes,
                          identity=ident) as arena:
        found = arena.get_object(key) if args.role != "alone" else None
        start = time.perf_counter()
        if found is not None:
            with found:
                engine.restore(np.frombuffer(found if found.contiguous else bytes(found), np.uint8))
            said["restored"] = len(found)
        else:
            engine.decode(tokens[:whole])
        said["seconds"] = time.perf_counter() - start
        if found is None and args.role != "alone":
            said |= save(arena, key, engine)
    said["logits"] = engine.decode(tokens[whole:]).tobytes().hex()
    engine.close()
    return said


def save(arena: kvshm.Arena, key: bytes, engine: llama.Llama) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        fill = arena.create_object(key, engine.state_bytes(), timeout=5)
    except kvshm.Busy:
        fill = None
    if fill is None:
        return {}  # another process was faster, or is about to be
    with fill:
        in_place = fill.contiguous
        to = np.frombuffer(fill, np.uint8) if in_place else np.empty(len(fill), np.uint8)
        engine.save(to)
        if not in_place:
            fill.write(0, to)
        del to  # nobody may be able to write when it is published
        fill.commit().close()
    return {"saved": len(fill), "in_place": in_place, "save_seconds": time.perf_counter() - start}


def run(role: str, args: argparse.Namespace) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, role, "--model", str(args.model), "--arena", args.arena,
         "--tokens", str(args.tokens), "--block-bytes", args.block_bytes],
        stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout))


def both(args: argparse.Namespace) -> int:
    try:
        first, second = run("serve", args), run("serve", args)
    finally:
        kvshm.remove(args.arena, force=True)
    print(f"first process   computed {args.tokens // CHUNK * CHUNK} tokens in "
          f"{first['seconds'] * 1e3:.1f} ms, left {first['saved'] / 1e6:.1f} MB of state in "
          f"{first['save_seconds'] * 1e3:.1f} ms")
    print(f"second process  restored it in {second['seconds'] * 1e3:.1f} ms")
    equal = first["logits"] == second["logits"] and "restored" in second
    print("next-token logits are", "equal" if equal else "NOT EQUAL")
    return 0 if equal else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=["serve", "alone"],
                        help="serve: one process, prints JSON; alone: the same without the arena")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: a small one, made here)")
    parser.add_argument("--arena", default=f"llama-example-{os.getpid()}")
    parser.add_argument("--tokens", type=int, default=1000, help="length of the prompt")
    parser.add_argument("--block-bytes", default="256KiB")
    args = parser.parse_args()
    if args.tokens <= CHUNK or args.tokens % CHUNK == 0:
        parser.error(f"--tokens: more than {CHUNK}, and no multiple of it, so that a rest is left")
    if args.role:
        print(json.dumps(serve(args)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            args.model = Path(folder) / "tiny.gguf"
            tiny_model.write(args.model)
        return both(args)


if __name__ == "__main__":
    sys.exit(main())
