# SPDX-License-Identifier: Apache-2.0
"""As the first child of vLLM's MultiConnector: beside NixlConnector, which moves KV between hosts
and here only stands by, and beside ExampleConnector, which keeps files."""
from __future__ import annotations

from kvshm.tools.vllm.client import Request
from kvshm.tools.vllm.options import kvshm_connector
from support import PREFIX
from support.envs import packages

from .watching import one, prompt, watch

NAME = f"{PREFIX}multi"


def test_it_loads_and_saves_beside_another_connector(new_engine, tmp_path):
    """With processes of its own, as `vllm serve` runs it: statistics are sent between them."""
    other = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
             "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)}}
    engine = new_engine(multiprocessing=True, connector={
        "kv_connector": "MultiConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "connectors": [kvshm_connector({"name": NAME, "size": "64MiB"}), other]}})
    with watch(NAME) as seen:
        request = Request(prompt(1), 16)
        cold = one(engine, request)
        assert cold.num_cached_tokens == 0
        assert len(seen.digests()) == 31
        assert len(list(tmp_path.glob("*/*.safetensors"))) == 4  # a file for each layer
        own = one(engine, request)
        assert engine.reset_prefix_cache()
        warm = one(engine, request)
        assert own.num_cached_tokens == warm.num_cached_tokens == 992
        assert warm.tokens == own.tokens
        metrics = engine.metrics()
        assert metrics["vllm:kvshm_saved_blocks_total"] == 31
        assert metrics["vllm:kvshm_loaded_blocks_total"] == 31
        assert seen.in_use() == (0, 0) and seen.is_clean()


def test_it_is_the_first_child_beside_nixl(new_engine):
    """The contract: its metadata and statistics are its own, and nothing of it is taken for NIXL's
    handshake."""
    engine = new_engine(pythonpath=(packages("nixl==1.5.2", "nixl-cu12==1.5.1"),), connector={
        "kv_connector": "MultiConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [
            kvshm_connector({"name": f"{NAME}-nixl", "size": "64MiB"}),
            {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}]}})
    assert "NIXL is available" in engine.log()
    with watch(f"{NAME}-nixl") as seen:
        request = Request(prompt(2), 16)
        cold = one(engine, request)
        assert cold.num_cached_tokens == 0 and len(seen.digests()) == 31
        own = one(engine, request)
        assert engine.reset_prefix_cache()
        warm = one(engine, request)
        assert own.num_cached_tokens == warm.num_cached_tokens == 992
        assert warm.tokens == own.tokens
        assert seen.in_use() == (0, 0) and seen.is_clean()
