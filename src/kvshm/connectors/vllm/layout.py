# SPDX-License-Identifier: Apache-2.0
"""The physical layout of an engine's KV as text: equal texts, equal bytes for equal tokens.

It is computed from the configuration, alike in the scheduler and in every worker; a worker checks
that the tensors it is given are what the configuration says (register_kv_caches).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .groups import Group


def layout_text(vllm_config: Any, kv_cache_config: Any, groups: Sequence[Group]) -> str:
    """Such as "LBHNC cpu-vec 4x16384@32"."""
    layout = getattr(kv_cache_config, "kv_cache_layout", None) or "default"
    parts = [str(getattr(layout, "name", layout)), _packing(vllm_config, groups)]
    for group in groups:
        sizes = sorted(set(group.page_bytes))
        pages = "+".join(f"{group.page_bytes.count(size)}x{size}" for size in sizes)
        limit = f"w{group.window}" if group.window is not None else ""
        limit += f"c{group.chunk}" if group.chunk is not None else ""
        parts.append(f"{pages}@{group.block_tokens}{limit}")
    return " ".join(part for part in parts if part)


def _packing(vllm_config: Any, groups: Sequence[Group]) -> str:
    """What else the bytes inside a block depend on: the attention backend, which is chosen by the
    GPU's generation unless it is named; on a CPU the instruction set that they are packed for."""
    device = str(getattr(vllm_config.device_config, "device_type", ""))
    if device != "cpu":
        backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
        return f"{device}{_capability()}-{getattr(backend, 'name', backend) or 'auto'}"
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    except ImportError:
        return "cpu"
    model = vllm_config.model_config
    isas = sorted({
        _get_attn_isa(model.dtype, group.block_tokens, model.get_head_size())
        for group in groups})
    return "cpu-" + "-".join(isas)


def _capability() -> str:
    try:
        from vllm.platforms import current_platform

        return str(current_platform.get_device_capability() or "").replace(" ", "")
    except (ImportError, AttributeError, NotImplementedError):
        return ""


def slice_bytes(groups: Sequence[Group]) -> int:
    """Of one rank's part of an arena block, in which any group's block finds room."""
    return -(-max(group.slice_bytes for group in groups) // 64) * 64
