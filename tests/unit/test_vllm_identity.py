# SPDX-License-Identifier: Apache-2.0
"""identity_of: what makes two vLLM engines share, what keeps them apart, what is refused."""
from __future__ import annotations

import copy
import hashlib
import json
import pickle
import sys
import types
from types import SimpleNamespace as NS
from typing import Any

import kvshm
import pytest
from kvshm.connectors.vllm.identity import confirm_seed, identity_of, none_hash_seed


def spec(**fields: Any) -> NS:
    return NS(**{"block_size": 16, "dtype": "torch.bfloat16", "kv_quant_mode": NS(name="NONE")}
              | fields)


def engine() -> NS:
    return NS(
        vllm=NS(
            model_config=NS(
                model="org/tiny", revision="a" * 40, dtype="torch.bfloat16", quantization=None,
                quantization_config=None, hf_overrides={}, model_class_overrides={},
                disable_sliding_window=False, code_revision=None, config_format="auto",
                multimodal_config=None, model_weights="", seed=0),
            cache_config=NS(cache_dtype="auto", block_size=16, prefix_caching_hash_algo="sha256",
                            kv_cache_dtype_skip_layers=[]),
            parallel_config=NS(pipeline_parallel_size=1, prefill_context_parallel_size=1,
                               decode_context_parallel_size=1, nnodes_within_dp=1,
                               tensor_parallel_size=1),
            load_config=NS(load_format="auto", download_dir=None),
            speculative_config=None),
        kv=NS(kv_cache_groups=[NS(layer_names=["l.0", "l.1"], kv_cache_spec=spec())],
              hash_block_size=16),
        layout="LBHNC vec16", config={"weights": "w"}, version="0.32.0", env={})


def of(one: NS) -> Any:
    return identity_of(one.vllm, one.kv, one.layout, kvshm.Config.resolve(one.config, {}),
                       version=one.version, env=one.env)


def changed(path: str, value: Any) -> NS:
    one = copy.deepcopy(engine())
    *steps, last = path.split(".")
    at = one
    for step in steps:
        at = at[int(step)] if step.isdigit() else getattr(at, step)
    setattr(at, last, value)
    return one


def test_the_fields() -> None:
    found = of(engine())
    assert (found.model, found.weights, found.dtype) == ("org/tiny", "w", "bfloat16")
    assert found.block_tokens == 16 and found.parallel == "tp=1" and found.epoch == 0
    assert found.layout.startswith("LBHNC vec16 block=16 hash=16 groups=16x2:")
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    assert found.namespace.startswith(f"vllm-0.32/sha256/{python}/seed-")
    assert of(engine()) == found
    assert not found.allow_unknown_weights


APART = [
    ("vllm.model_config.model", "org/other"),
    ("config", {"weights": "v"}),
    ("config", {"weights": "w", "namespace": "prod"}),
    ("vllm.model_config.dtype", "torch.float16"),
    ("vllm.model_config.quantization", "fp8"),
    ("vllm.model_config.hf_overrides", {"rope_theta": 1}),
    ("vllm.model_config.hf_overrides", of),
    ("vllm.model_config.disable_sliding_window", True),
    ("vllm.model_config.multimodal_config",
     NS(mm_processor_kwargs={"max_pixels": 3}, media_io_kwargs={}, mm_encoder_attn_dtype=None)),
    ("vllm.speculative_config",
     NS(method="eagle", draft_model_config=NS(model="org/draft", revision="b" * 40))),
    ("vllm.cache_config.cache_dtype", "fp8"),
    ("vllm.cache_config.kv_cache_dtype_skip_layers", ["0"]),
    ("kv.kv_cache_groups.0.kv_cache_spec", spec(dtype="torch.uint8")),
    ("kv.kv_cache_groups.0.kv_cache_spec", spec(kv_quant_mode=NS(name="FP8"))),
    ("kv.kv_cache_groups.0.kv_cache_spec", spec(block_size=32)),
    ("kv.kv_cache_groups.0.kv_cache_spec", spec(sliding_window=64)),
    ("kv.kv_cache_groups.0.layer_names", ["l.1", "l.0"]),
    ("kv.hash_block_size", 8),
    ("vllm.cache_config.block_size", 48),
    ("layout", "LBHNC amx"),
    ("layout", "LBHNC vec16" + 200 * "x"),
    ("vllm.parallel_config.tensor_parallel_size", 2),
    ("vllm.cache_config.prefix_caching_hash_algo", "sha256_cbor"),
    ("version", "0.33.0"),
    ("env", {"PYTHONHASHSEED": "0"}),
    ("env", {"PYTHONHASHSEED": ""}),
]


def test_whatever_makes_other_bytes_makes_another_identity() -> None:
    found = [of(engine())] + [of(changed(path, value)) for path, value in APART]
    assert len(set(found)) == len(found)
    assert len({one.fingerprint for one in found}) == len(found)


@pytest.mark.parametrize(("path", "value"), [
    ("version", "0.32.1"),
    ("vllm.model_config.seed", 7),
    ("kv.num_blocks", 4711),
    ("kv.hash_block_size", None),  # a release that does not say: the block size
    # vLLM's scheduler is shown the first layer's spec in place of all of them.
    ("kv.kv_cache_groups.0.kv_cache_spec", NS(block_size=16, kv_cache_specs={"l.0": spec()})),
    ("config", {"weights": "w", "size": "1GiB", "load": "sync"}),
    ("env", {"PATH": "/bin"}),
])
def test_what_makes_no_other_bytes_is_left_out(path: str, value: Any) -> None:
    assert of(changed(path, value)) == of(engine())


def test_python_is_in_a_pickles_hash_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = engine()
    plain = changed("vllm.cache_config.prefix_caching_hash_algo", "sha256_cbor")
    before = of(pickled), of(plain)
    monkeypatch.setattr(sys, "version_info", NS(major=3, minor=99))
    assert of(pickled) != before[0] and of(plain) == before[1]


@pytest.mark.parametrize(("size", "tokens"), [(1, 1), (16, 16), (48, 16), (784, 16), (4096, 1024)])
def test_block_tokens(size: int, tokens: int) -> None:
    found = of(changed("vllm.cache_config.block_size", size))
    assert found.block_tokens == tokens and f"block={size} " in found.layout


@pytest.mark.parametrize(("path", "value", "says"), [
    ("vllm.parallel_config.pipeline_parallel_size", 2, "pipeline"),
    ("vllm.parallel_config.prefill_context_parallel_size", 2, "context"),
    ("vllm.parallel_config.decode_context_parallel_size", 2, "context"),
    ("vllm.parallel_config.nnodes_within_dp", 2, "several hosts"),
    ("vllm.cache_config.prefix_caching_hash_algo", "xxhash", "set PYTHONHASHSEED"),
    ("vllm.cache_config.prefix_caching_hash_algo", "xxhash_cbor", "set PYTHONHASHSEED"),
    ("vllm.cache_config.prefix_caching_hash_algo", "new", "set PYTHONHASHSEED"),
    ("version", "0.28.9", "0.29"),
])
def test_what_no_other_process_could_share_is_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises(kvshm.Unsupported, match=says):
        of(changed(path, value))


def test_xxhash_with_a_seed() -> None:
    one = changed("vllm.cache_config.prefix_caching_hash_algo", "xxhash")
    one.env = {"PYTHONHASHSEED": "7"}
    other = copy.deepcopy(one)
    other.env = {"PYTHONHASHSEED": "8"}
    assert of(one) == of(one) != of(other)
    assert none_hash_seed("sha256", {}) == "vllm-none-hash"


def test_long_names_stay_apart_and_within_the_limit() -> None:
    one = changed("vllm.model_config.model", "org/" + "ü" * 300)
    one.layout = "L" * 900
    one.config = {"weights": "w" * 200, "namespace": "é" * 100}
    one.kv.kv_cache_groups *= 40
    one.vllm.cache_config.kv_cache_dtype_skip_layers = [str(i) for i in range(90)]
    one.vllm.model_config.quantization = "compressed-tensors"
    one.vllm.model_config.hf_overrides = {"x": 1}
    found = of(one)
    assert len(json.dumps(json.loads(found.text), separators=(",", ":"))) <= 1023
    others = [copy.deepcopy(one) for _ in range(3)]
    others[0].vllm.model_config.model += "x"
    others[1].layout += "x"
    others[2].config["weights"] = "w" * 199 + "v"
    assert len({found, *map(of, others)}) == 4


def test_carried_to_other_processes() -> None:
    found = of(engine())
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("actual", ["vllm-none-hash", "other", None])
def test_the_seed_is_confirmed_with_vllm(actual: str | None,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def sha256(value: Any) -> bytes:
        return hashlib.sha256(pickle.dumps(value)).digest()

    utils = types.ModuleType("vllm.v1.core.kv_cache_utils")
    if actual is not None:
        setattr(utils, "NONE_HASH", sha256(actual))
    hashing = types.ModuleType("vllm.utils.hashing")
    setattr(hashing, "get_hash_fn_by_name", {"sha256": sha256}.__getitem__)
    core = types.ModuleType("vllm.v1.core")
    setattr(core, "kv_cache_utils", utils)
    for module in (core, utils, hashing, *map(types.ModuleType, ("vllm", "vllm.v1", "vllm.utils"))):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    if actual == "vllm-none-hash":
        confirm_seed("sha256", {})
    else:
        with pytest.raises(kvshm.Unsupported, match="PYTHONHASHSEED"):
            confirm_seed("sha256", {})
