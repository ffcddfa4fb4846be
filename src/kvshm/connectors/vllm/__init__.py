# SPDX-License-Identifier: Apache-2.0
"""The connector for vLLM: `kv_connector="KvshmConnector"`, and this package's name as
`kv_connector_module_path` (docs/vllm.md).

vLLM imports this in its API server as well, and tools do without vLLM: nothing is loaded before
KvshmConnector is asked for.
"""
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    KvshmConnector: Any  # its base class is known where vLLM is installed

__all__ = ["KvshmConnector"]


def __getattr__(name: str) -> Any:
    if name != "KvshmConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from kvshm.connectors.vllm.version import check

    check()  # before the connector derives from classes that may not be there
    globals()[name] = import_module(f"{__name__}.connector").KvshmConnector
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
