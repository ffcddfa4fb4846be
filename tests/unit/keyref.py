# SPDX-License-Identifier: Apache-2.0
"""Identity and keys once more, in plain Python, written from docs/keys.md.

It shares no code with the library (hashlib's BLAKE2b, a SipHash of its own), so that the two
check each other. Slow: for tests and for the published vectors only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

ZERO = bytes(16)
SALT, ADAPTER, MEDIA, GROUP, OTHER = 1, 2, 3, 4, 5
Item = tuple[int, bytes]


@dataclass(frozen=True)
class Fields:
    model: str
    weights: str = ""
    dtype: str = ""
    layout: str = ""
    parallel: str = ""
    namespace: str = ""
    block_tokens: int = 16
    epoch: int = 0


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def never_zero(value: bytes) -> bytes:
    return value if any(value) else b"\x01" + bytes(len(value) - 1)


def hashed(purpose: bytes, size: int, message: bytes, key: bytes = b"") -> bytes:
    return blake2b(message, digest_size=size, key=key, person=purpose).digest()


def encoding(f: Fields, with_epoch: bool) -> bytes:
    texts = (f.model, f.weights, f.dtype, f.layout, f.parallel, f.namespace)
    values = [text.encode() for text in texts] + [u32(f.block_tokens)]
    if with_epoch:
        values.append(u32(f.epoch))
    return b"\x01" + b"".join(
        bytes([tag]) + u32(len(value)) + value for tag, value in enumerate(values, start=1)
    )


def identity_key(f: Fields) -> bytes:
    return hashed(b"kvshm.v1.ident", 32, encoding(f, with_epoch=True))


def fingerprint(f: Fields) -> bytes:
    return never_zero(hashed(b"kvshm.v1.finger", 16, encoding(f, with_epoch=False)))


def identity_text(f: Fields) -> str:
    names = ("model", "weights", "dtype", "layout", "parallel", "namespace")
    order = {name: getattr(f, name) for name in (*names, "block_tokens", "epoch")}
    return json.dumps(order, separators=(",", ":"))


def extra_encoding(items: Sequence[Item]) -> bytes:
    return b"".join(u32(kind) + u32(len(data)) + data for kind, data in items)


def extra_digest(key: bytes, items: Sequence[Item]) -> bytes:
    if not items:
        return ZERO
    return never_zero(hashed(b"kvshm.v1.extra", 16, extra_encoding(items), key))


def token_keys(
    key: bytes,
    tokens: Sequence[int],
    block_tokens: int,
    extra: bytes = ZERO,
    parent: bytes = ZERO,
) -> list[bytes]:
    keys = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = b"".join(u32(t) for t in tokens[start : start + block_tokens])
        message = b"\x01" + parent + u32(block_tokens) + block + extra
        parent = never_zero(hashed(b"kvshm.v1.token", 16, message, key))
        keys.append(parent)
    return keys


def hash_keys(key: bytes, hashes: Iterable[bytes], extra: bytes = ZERO) -> list[bytes]:
    subkey = hashed(b"kvshm.v1.bind", 16, b"", key)
    return [never_zero(siphash128(subkey, b"\x02" + extra + u32(len(h)) + h)) for h in hashes]


def siphash128(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128 bits of output."""
    mask = (1 << 64) - 1
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rotate(i: int, bits: int) -> None:
        v[i] = ((v[i] << bits) | (v[i] >> (64 - bits))) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            # a += b; b = rotated b ^ a; and a's halves change places where the last column says so
            for a, b, bits, swap in ((0, 1, 13, 1), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 1)):
                v[a] = (v[a] + v[b]) & mask
                rotate(b, bits)
                v[b] ^= v[a]
                if swap:
                    rotate(a, 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 255])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")
