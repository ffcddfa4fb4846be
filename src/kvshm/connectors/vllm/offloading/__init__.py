# SPDX-License-Identifier: Apache-2.0
"""A spec for vLLM's own OffloadingConnector: `spec_name="KvshmOffloadingSpec"`, and this package's
name as `spec_module_path` (docs/vllm.md).

vLLM imports this in its API server as well: nothing is loaded before KvshmOffloadingSpec is asked
for.
"""
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    KvshmOffloadingSpec: Any  # its base class is known where vLLM is installed

__all__ = ["KvshmOffloadingSpec"]

VERSION = (0, 32)  # vLLM's offloading interface changes with nearly every release


def check() -> str:
    """The installed vLLM's version. Unsupported: its offloading interface is another."""
    from kvshm.connectors.vllm.version import installed, minor_version
    from kvshm.errors import Unsupported

    version = installed()
    if minor_version(version) != VERSION:
        raise Unsupported(
            f"vLLM {version} is installed, KvshmOffloadingSpec is written for the offloading "
            f"interface of vLLM {VERSION[0]}.{VERSION[1]} alone: install that one, or use "
            f"kv_connector='KvshmConnector' with "
            f"kv_connector_module_path='kvshm.connectors.vllm', which works with this one")
    return version


def __getattr__(name: str) -> Any:
    if name != "KvshmOffloadingSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    check()
    globals()[name] = import_module(f"{__name__}.spec").KvshmOffloadingSpec
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
