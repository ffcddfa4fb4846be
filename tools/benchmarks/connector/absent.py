# SPDX-License-Identifier: Apache-2.0
"""What the connector's transfers import of vLLM, where there is none: two empty base classes."""

from __future__ import annotations

import sys
from types import ModuleType

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


def stand_in() -> None:
    """Before kvshm.connectors.vllm.transfers is imported; in a process that needs no vLLM."""
    name = ""
    for part in BASE.split("."):
        name = f"{name}.{part}".lstrip(".")
        sys.modules[name] = ModuleType(name)
    for base in ("KVConnectorMetadata", "KVConnectorWorkerMetadata"):
        setattr(sys.modules[BASE], base, type(base, (), {}))
