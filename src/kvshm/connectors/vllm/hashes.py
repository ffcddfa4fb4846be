# SPDX-License-Identifier: Apache-2.0
"""vLLM's block hashes without vLLM, for who asks from outside which blocks a prompt has.

A block's hash is H((hash before it, its tokens, extra)), H being what
--prefix-caching-hash-algo names: SHA-256 or XXH3-128 of a pickle or of canonical CBOR; the chain
begins with H(seed). Extra is a salt at the first block; adapters and media are not known here.
Source: vllm/utils/hashing.py and vllm/v1/core/kv_cache_utils.py of vLLM 0.32.
"""
from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kvshm
from kvshm.errors import Unsupported

from .identity import none_hash_seed

_SCHEME = re.compile(r"vllm-(\d+)\.(\d+)/(\w+)(?:/py(\d+\.\d+))?/seed-([0-9a-f]{16})$")
_SIZES = re.compile(r" block=(\d+) hash=(\d+) groups=(\S*):")


def made_by_vllm(identity: Mapping[str, Any]) -> bool:
    """Whether blocks of this identity (the JSON of an arena) go by vLLM's hashes."""
    return _SCHEME.search(identity["namespace"]) is not None


def prompt_keys(identity: Mapping[str, Any], tokens: Sequence[int], salt: str | None = None,
                env: Mapping[str, str] = os.environ) -> Any:
    """Keys (n, 16) of a prompt's full blocks in the first KV cache group.

    identity: an arena's, of a vLLM engine, with the epoch wanted. Unsupported, with the remedy:
    another Python or seed than the engine's, or a hash function that is not installed.
    """
    scheme, sizes = _SCHEME.search(identity["namespace"]), _SIZES.search(identity["layout"])
    if scheme is None or sizes is None:
        raise Unsupported("the arena's blocks were not made by a vLLM engine")
    major, minor, algorithm, python, seed_digest = scheme.groups()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python and python != here:
        raise Unsupported(f"the engine hashes by {algorithm} under Python {python}, this is {here}")
    seed = none_hash_seed(algorithm, env)
    if hashlib.blake2b(seed.encode(), digest_size=8).hexdigest() != seed_digest:
        raise Unsupported("the engine's hashes have another seed: set PYTHONHASHSEED as it has it")
    block, per_hash, groups = int(sizes[1]), int(sizes[2]), sizes[3].split(",")
    tagged = (int(major), int(minor)) >= (0, 32)
    hashes = _chain(_function(algorithm), seed, tokens, per_hash, salt, tagged)
    per = block // per_hash
    own = kvshm.Identity(**identity, allow_unknown_weights=True)
    extra: Any = {"group": (0).to_bytes(4, "little")} if len(groups) > 1 else b""
    return own.keys_from_hashes(hashes[per - 1::per], extra=extra)


def _chain(function: Callable[[Any], bytes], seed: str, tokens: Sequence[int], size: int,
           salt: str | None, tagged: bool) -> list[bytes]:
    before = function(seed)
    hashes = []
    for start in range(0, len(tokens) - size + 1, size):
        extra = None
        if salt is not None and start == 0:
            extra = (("cache_salt", salt),) if tagged else (salt,)
        before = function((before, tuple(tokens[start:start + size]), extra))
        hashes.append(before)
    return hashes


def _function(algorithm: str) -> Callable[[Any], bytes]:
    try:
        if algorithm.endswith("_cbor"):
            import cbor2

            def data(value: Any) -> bytes:
                return bytes(cbor2.dumps(value, canonical=True))
        else:
            def data(value: Any) -> bytes:
                return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if algorithm.startswith("sha256"):
            return lambda value: hashlib.sha256(data(value)).digest()
        import xxhash

        return lambda value: bytes(xxhash.xxh3_128_digest(data(value)))
    except ImportError as error:
        raise Unsupported(f"hashes by {algorithm} need {error.name}: pip install {error.name}, or "
                          "run this where vLLM is installed") from None
