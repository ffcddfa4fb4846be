# SPDX-License-Identifier: Apache-2.0
"""What tells the KV of one LoRA adapter from another's, for keys: extra={"adapter": digest}.

vLLM's own block hash has the adapter's name and path, not what lies there.
"""
from __future__ import annotations

import logging
import os
import secrets
import threading
from typing import Any, NamedTuple

from kvshm.connectors.vllm.sampling import Digest, add_file
from kvshm.connectors.vllm.weights import snapshot

FULL_UP_TO = 1 << 30  # bytes; of larger adapters a sample is read
_MOST = 1024  # adapters remembered
_log = logging.getLogger("kvshm")
_Signature = tuple[tuple[str, int, int, int, int], ...]


class _Seen(NamedTuple):
    signature: _Signature | None
    digest: bytes


_seen: dict[tuple[int, str, str], _Seen] = {}
_lock = threading.Lock()
# Of this process alone: what nobody else may find.
_alone = secrets.token_bytes(16)


def adapter_digest(lora_request: Any) -> bytes:
    """16 bytes for a request's adapter; b"" for None. Equal in all processes while its files are.

    lora_request: vLLM's LoRARequest (lora_name, lora_int_id, lora_path, load_inplace). The files
    are read once and looked at (stat) on each call. Which weights vLLM has loaded when files change
    under an adapter in use, nobody can tell: from then on its blocks are shared with no other
    process, until it is loaded anew, under another id or in place. The same where the files cannot
    be read; then the id is in the digest. Any thread; raises nothing.
    """
    if lora_request is None:
        return b""
    name, number = str(lora_request.lora_name), int(lora_request.lora_int_id)
    path = str(lora_request.lora_path or "")
    signature = _signature(path)
    key = (number, name, path)
    with _lock:
        seen = _seen.get(key)
        if seen is not None and seen.signature == signature:
            return seen.digest
    replaced = seen is not None and not getattr(lora_request, "load_inplace", False)
    if replaced:
        _log.warning("adapter %s: the files in %s changed while it is in use; its blocks are no "
                     "longer shared with other processes. Load it anew to share again", name, path)
    digest = _digest(name, number, path, signature, replaced)
    with _lock:
        if len(_seen) >= _MOST:
            del _seen[next(iter(_seen))]
        _seen[key] = _Seen(signature, digest)
    return digest


def _folder(path: str) -> str:
    """Where the adapter lies: its path, or the snapshot of a hub repository of this name."""
    if os.path.isabs(path) or os.path.exists(path):
        return path
    return snapshot(path, "", None) or path


def _signature(path: str) -> _Signature | None:
    """Of each file its name, device, inode, size and time; None if the folder cannot be read."""
    try:
        with os.scandir(_folder(path)) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except OSError:
        return None
    return tuple(sorted((name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in found))


def _digest(name: str, number: int, path: str, signature: _Signature | None,
            replaced: bool) -> bytes:
    digest = Digest()
    digest.add("adapter", name, path)
    unreadable = not signature
    for file, _, _, size, _ in signature or ():
        total = sum(one[3] for one in signature or ())
        digest.add(file, size)
        try:
            add_file(digest, os.path.join(_folder(path), file), full=total <= FULL_UP_TO)
        except OSError:
            unreadable = True
    if unreadable:
        _log.warning("adapter %s: no readable files in %s; its blocks are not shared with other "
                     "processes", name, path)
    if unreadable or replaced:
        digest.add("alone", _alone, number)
    return digest.digest()
