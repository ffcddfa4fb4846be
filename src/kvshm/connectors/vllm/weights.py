# SPDX-License-Identifier: Apache-2.0
"""A fingerprint of the weights that vLLM serves: what tells a model from its fine-tuned self.

From files that are there; nothing goes to the network. A folder costs one read of 4 KiB a tensor:
70B in 30 files, 720 tensors, 7 ms of processor time (28 ms on a busy machine) where they are in
memory, as they are once vLLM has loaded them; else these reads go to the disk all at once.
"""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from kvshm.config import Config
from kvshm.connectors.vllm.sampling import Digest, add_file
from kvshm.errors import InvalidArgument, Unsupported

# The first kind of which a folder has files is what vLLM loads; small files that change what the
# weights mean go with them.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
_BESIDE = ("config.json", "params.json", "quantize_config.json", "hf_quant_config.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/([0-9a-f]{40})/?$")
_REMEDY = ("set the option weights to what tells them from others (a commit, a digest), or "
           "weights_check=\"name\" where one set of weights bears this name on this host")


def fingerprint(model_config: Any, load_format: str, config: Config, *,
                download_dir: str | None = None, env: Mapping[str, str] = os.environ) -> str:
    """Of the weights of a vLLM ModelConfig; "" for weights_check="name" without a revision.

    Unsupported, with the remedy, where they cannot be told from others.
    """
    model: str = model_config.model
    revision = model_config.revision or ""
    if config.weights:
        return config.weights
    if config.weights_check == "name":
        return f"revision:{revision}" if revision else ""
    if load_format == "dummy":
        return _dummy(model_config, download_dir, env)
    if getattr(model_config, "model_weights", ""):
        raise Unsupported(f"weights of {model} are loaded from {model_config.model_weights}, where "
                          f"kvshm does not read: {_REMEDY}")
    full = config.weights_check == "full"
    found = _SNAPSHOT.search(os.path.abspath(model)) if os.path.isdir(model) else None
    if found and not full:
        return f"commit:{found[2]}"
    if os.path.isdir(model):
        return _folder(model, full)
    if os.path.isfile(model):
        return _files(os.path.dirname(model), [os.path.basename(model)], full)
    folder = snapshot(model, revision, download_dir, env)
    if folder is None:
        raise Unsupported(f"weights of {model}: no folder of this name, and no snapshot of "
                          f"revision {revision or 'main'} in the local cache: {_REMEDY}")
    return _folder(folder, True) if full else f"commit:{os.path.basename(folder)}"


def model_name(model: str) -> str:
    """The model's name: "org/name" of a hub id or a snapshot of one, the last part of a path."""
    found = _SNAPSHOT.search(model)
    if found:
        return found[1].replace("--", "/", 1)
    return os.path.basename(model.rstrip("/")) if os.path.exists(model) else model


def snapshot(repository: str, revision: str, download_dir: str | None,
             env: Mapping[str, str] = os.environ) -> str | None:
    """The folder of a hub repository's revision in the local cache; None if there is none."""
    home = env.get("HF_HOME") or os.path.join(
        env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    cache = (download_dir or env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
             or os.path.join(home, "hub"))
    top = os.path.join(cache, "models--" + repository.replace("/", "--"))
    commit = revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            with open(os.path.join(top, "refs", *commit.split("/")), encoding="ascii") as ref:
                commit = ref.read(64).strip()
        except (OSError, UnicodeDecodeError):
            return None
    folder = os.path.join(top, "snapshots", commit)
    return folder if _COMMIT.fullmatch(commit) and os.path.isdir(folder) else None


def _folder(folder: str, full: bool) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as error:
        raise InvalidArgument(f"weights: {error}: {_REMEDY}") from error
    kind = next((k for k in _WEIGHTS if any(name.endswith(k) for name in names)), None)
    if kind is None:
        raise Unsupported(f"weights: no file of {', '.join(_WEIGHTS)} in {folder}: {_REMEDY}")
    chosen = [name for name in names
              if name.endswith((kind, ".py")) or name in _BESIDE]
    return _files(folder, chosen, full)


def _files(folder: str, names: list[str], full: bool) -> str:
    digest = Digest()
    try:
        for name in names:
            digest.add(name)
            small = not name.endswith(_WEIGHTS)
            add_file(digest, os.path.join(folder, name), full=full or small)
    except OSError as error:
        raise InvalidArgument(f"weights: {error}: {_REMEDY}") from error
    return f"blake2b{'' if full else '-sample'}:{digest.hexdigest()}"


def _dummy(model_config: Any, download_dir: str | None, env: Mapping[str, str]) -> str:
    """Of weights that vLLM makes up: they follow from the shapes, that is from config.json."""
    model: str = model_config.model
    folder = model if os.path.isdir(model) else snapshot(
        model, model_config.revision or "", download_dir, env)
    digest = Digest()
    digest.add(getattr(model_config, "seed", 0) or 0)
    try:
        add_file(digest, os.path.join(folder or "", "config.json"), full=True)
    except OSError:
        digest.add(model)
    return f"dummy:{digest.hexdigest()}"
