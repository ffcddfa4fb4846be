# SPDX-License-Identifier: Apache-2.0
"""The identity of a vLLM engine: all that the bytes of its KV blocks, and its block hashes, depend
on. Engines with equal identities share an arena; for others nothing is found.

Both roles of the connector, in their processes, come to the same identity: it is made of what
vLLM's configuration says, never of what one process alone knows.
"""
from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from kvshm.config import Config
from kvshm.connectors.vllm.version import installed, minor_version
from kvshm.connectors.vllm.weights import fingerprint, model_name
from kvshm.errors import Unsupported
from kvshm.index import Identity

# What vLLM seeds its hashes with unless PYTHONHASHSEED is set (v1/core/kv_cache_utils.py).
DEFAULT_SEED = "vllm-none-hash"


def identity_of(vllm_config: Any, kv_cache_config: Any, layout_text: str, config: Config, *,
                version: str | None = None, env: Mapping[str, str] = os.environ) -> Identity:
    """The kvshm.Identity of an engine, from its VllmConfig and KVCacheConfig.

    layout_text: the physical layout of the engine's tensors, on a CPU with the pack of its
    instruction set. version: of vLLM; None = the installed one. Epoch 0; see Identity.with_epoch.

    Unsupported, with the remedy, for what no other process could share: pipeline or context
    parallel engines, ranks on several hosts, block hashes with a seed of their own, weights that
    cannot be told from others. No lock, no network; reads weight files once (weights.py).
    """
    model = vllm_config.model_config
    version = installed() if version is None else version
    parallel = _parallel(vllm_config.parallel_config)
    scheme = hash_scheme(vllm_config.cache_config.prefix_caching_hash_algo, version, env)
    return Identity(
        model=_short(model_name(model.model), 120),
        weights=_weights(vllm_config, config, env),
        dtype=_short(_dtype(vllm_config, kv_cache_config), 60),
        layout=_layout(vllm_config.cache_config, kv_cache_config, layout_text),
        block_tokens=_power_of_two(vllm_config.cache_config.block_size),
        parallel=parallel,
        namespace="/".join(filter(None, (_short(config.namespace, 120), scheme))),
        allow_unknown_weights=config.weights_check == "name")


def hash_scheme(algorithm: str, version: str, env: Mapping[str, str] = os.environ) -> str:
    """What vLLM's block hashes depend on beside the request, such as "vllm-0.32/sha256/py3.11/…".

    Releases hash tags, adapters and salts differently; a pickle depends on the Python version.
    """
    major, minor = minor_version(version)
    seed = none_hash_seed(algorithm, env)
    python = ""
    if not algorithm.endswith("_cbor"):
        python = f"/py{sys.version_info.major}.{sys.version_info.minor}"
    return f"vllm-{major}.{minor}/{algorithm}{python}/seed-{_hex(seed, 8)}"


def none_hash_seed(algorithm: str, env: Mapping[str, str] = os.environ) -> str:
    """The seed of vLLM's NONE_HASH, where every hash chain begins. Unsupported: it is random."""
    seed = env.get("PYTHONHASHSEED")
    if seed is not None:
        return seed
    if algorithm.startswith("sha256"):
        return DEFAULT_SEED
    raise Unsupported(
        f"prefix caching by {algorithm} seeds its hashes at random in each process, so no other "
        f"process would find a block: set PYTHONHASHSEED to one number for all engines of this "
        f"host, or take --prefix-caching-hash-algo sha256")


def confirm_seed(algorithm: str, env: Mapping[str, str] = os.environ) -> None:
    """Check, in the scheduler's process and from its first request on, that vLLM's hashes begin
    with what the identity says. Unsupported: they do not, so nobody else would find a block."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    expected = get_hash_fn_by_name(algorithm)(none_hash_seed(algorithm, env))
    found = getattr(kv_cache_utils, "NONE_HASH", None)
    if found != expected:
        raise Unsupported(
            f"vLLM's block hashes by {algorithm} begin with another value than PYTHONHASHSEED or "
            f"vLLM's constant gives, so no other process would find a block: set PYTHONHASHSEED to "
            f"one number for all engines of this host")


def _parallel(parallel: Any) -> str:
    for name, what in (("pipeline_parallel_size", "pipeline parallel"),
                       ("prefill_context_parallel_size", "prefill context parallel"),
                       ("decode_context_parallel_size", "decode context parallel"),
                       ("nnodes_within_dp", "one engine on several hosts")):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise Unsupported(f"{name}={size}: kvshm's connector does not do {what}: a block of "
                              f"the arena holds all ranks of one host; use tensor or data parallel")
    return f"tp={parallel.tensor_parallel_size}"


def _weights(vllm_config: Any, config: Config, env: Mapping[str, str]) -> str:
    """The weights and what else turns tokens into KV values: quantization, overrides, a draft."""
    model, load = vllm_config.model_config, vllm_config.load_config
    texts = [fingerprint(model, str(load.load_format), config, download_dir=load.download_dir,
                         env=env)]
    changes = _changes(model)
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if speculative is not None and draft is not None:  # its layers have KV in the same blocks
        changes["draft"] = [draft.model, str(speculative.method)]
        if draft.model != model.model:
            changes["draft"].append(fingerprint(draft, str(load.load_format), config,
                                                download_dir=load.download_dir, env=env))
    quantization = changes.pop("quantization", None)
    if quantization:
        texts.append(f"quantization={quantization}")
    if changes:
        texts.append("changes=" + _hex(json.dumps(changes, sort_keys=True, default=_plain), 16))
    return _short(";".join(text for text in texts if text), 200)


def _changes(model: Any) -> dict[str, Any]:
    """What of a ModelConfig makes other KV values of the same weights, where it is set."""
    found = {name: getattr(model, name, None) for name in (
        "quantization", "quantization_config", "hf_overrides", "model_class_overrides",
        "disable_sliding_window", "code_revision", "config_format")}
    if found["config_format"] == "auto":
        del found["config_format"]
    media = getattr(model, "multimodal_config", None)
    for name in ("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype"):
        found[name] = getattr(media, name, None)
    return {name: value for name, value in found.items() if value}


def _plain(value: Any) -> str:
    """Of a value that JSON does not have, a text that is the same in every process."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    fields = getattr(value, "__dict__", None)
    if fields:
        return json.dumps(fields, sort_keys=True, default=_plain)
    return str(value) if type(value).__str__ is not object.__str__ else type(value).__qualname__


def _dtype(vllm_config: Any, kv_cache_config: Any) -> str:
    """"bfloat16", or where the KV is quantized "fp8_e4m3 uint8 of bfloat16"."""
    cache, model = vllm_config.cache_config, _name(vllm_config.model_config.dtype)
    kinds = []
    for group in kv_cache_config.kv_cache_groups:
        spec = _one_spec(group.kv_cache_spec)
        types = getattr(spec, "dtypes", None) or [getattr(spec, "dtype", model)]
        kinds += [_name(t) for t in types]
        kinds.append(_name(getattr(spec, "kv_quant_mode", "")))
    stored = " ".join(dict.fromkeys(k for k in kinds if k not in ("", "NONE")))
    asked = model if cache.cache_dtype == "auto" else str(cache.cache_dtype)
    skipped = ",".join(getattr(cache, "kv_cache_dtype_skip_layers", None) or ())
    parts = [asked] if stored in ("", asked) else [asked, stored]
    return " ".join(parts) + (f" of {model}" if asked != model else "") + (
        f" without {skipped}" if skipped else "")


def _layout(cache: Any, kv_cache_config: Any, layout_text: str) -> str:
    """The layout of the tensors, tokens a block, and which layers make which group."""
    groups = []
    for group in kv_cache_config.kv_cache_groups:
        spec = _one_spec(group.kv_cache_spec)
        groups.append([spec.block_size, getattr(spec, "sliding_window", None) or 0,
                       list(group.layer_names)])
    hashed = getattr(kv_cache_config, "hash_block_size", None) or cache.block_size
    sizes = ",".join(f"{size}x{len(layers)}" for size, _, layers in groups)
    tail = f" block={cache.block_size} hash={hashed} groups={_short(sizes, 60)}:"
    return _short(layout_text, 120) + tail + _hex(json.dumps(groups), 8)


def _one_spec(spec: Any) -> Any:
    """Of layers with specs of their own the first: all that vLLM's scheduler is shown."""
    several = getattr(spec, "kv_cache_specs", None)
    return next(iter(several.values())) if several else spec


def _name(value: Any) -> str:
    """"bfloat16" of torch.bfloat16, "FP8" of an enum's member."""
    return str(getattr(value, "name", value)).rpartition(".")[2]


def _power_of_two(block_size: int) -> int:
    """The largest power of two up to 1024 that divides a block; the layout has the exact size."""
    return min(block_size & -block_size, 1024)


def _hex(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _short(text: str, limit: int) -> str:
    """Text that takes at most `limit` bytes of an identity's JSON: cut, with a digest of all."""
    if len(json.dumps(text)) - 2 <= limit:
        return text
    tail = f"~{_hex(text, 16)}"
    while len(json.dumps(text)) - 2 > limit - len(tail):
        text = text[:-1]
    return text + tail
