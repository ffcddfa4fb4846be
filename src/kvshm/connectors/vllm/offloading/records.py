# SPDX-License-Identifier: Apache-2.0
"""What goes from the manager through vLLM to the workers."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.kv_offload.base import LoadStoreSpec

from ..metadata import ArenaRef, Handles


@dataclass
class ArenaBlocks(LoadStoreSpec):
    """Where vLLM's blocks of a job lie in the arena, in the order of its GPULoadStoreSpec."""

    ref: ArenaRef | None
    handles: Handles  # empty: nothing can be copied
