# SPDX-License-Identifier: Apache-2.0
"""`kvshm warmup` beside a real vLLM server: what it computes for one, the next one lifts."""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import kvshm
import pytest
from kvshm.tools.vllm.options import QUIET, kvshm_connector
from kvshm.tools.vllm.overlay import overlay
from support.arenas import eventually
from support.cli import kvshm_cli

START = 600  # seconds


@pytest.fixture
def server(full_only: None, vllm_python: Path, model: Callable[[str], Path], arena_name: str,
           tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connector = kvshm_connector({"name": arena_name, "size": "64MiB",
                                 "tier": str(tmp_path / "tier"), "tier_size": "64MiB"})
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [str(vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model",
             str(model("tiny-llama")), "--host", "127.0.0.1", "--port", str(port), "--block-size",
             "32", "--max-model-len", "2048", "--max-num-seqs", "1", "--enforce-eager",
             "--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(connector)],
            env={**env, **QUIET, "PYTHONPATH": str(overlay(vllm_python, tmp_path / "python")),
                 "TMPDIR": str(tmp_path), "VLLM_CPU_KVCACHE_SPACE": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START
        while not answers(url):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < end
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/health", timeout=2):
            return True
    except (URLError, OSError):
        return False


def test_computed_lifted_and_found(server: str, arena_name: str, tmp_path: Path) -> None:
    prompts = [list(range(10 + seed, 10 + seed + n)) for seed, n in ((0, 320), (50, 800), (9, 20))]
    file = tmp_path / "prompts"
    file.write_text("\n".join(json.dumps([one % 200 + 10 for one in p]) for p in prompts))

    def warmup(*more: str) -> dict[str, Any]:
        done = kvshm_cli("warmup", arena_name, "--tokens", file, "--json", *more)
        assert done.code == 0, done
        found: dict[str, Any] = done.json
        return found
    first = warmup("--engine", server)
    assert [(one["blocks"], one["missing"], one["stored"]) for one in first["prompts"]] == [
        (10, 10, 10), (25, 25, 25), (0, 0, 0)], "its hashes are those of the engine"
    with kvshm.Arena.attach(arena_name, helper=False, pin="off") as arena:
        assert eventually(lambda: arena.stats().tier_stored_total >= 35, 30)
        assert arena.clear() == 35
    assert [one["lifted"] for one in warmup()["prompts"]] == [10, 25, 0]
    again = warmup("--engine", server)
    assert [one["found"] for one in again["prompts"]] == [10, 25, 0]
    cached = [one["engine"]["cached_tokens"] for one in again["prompts"]]
    assert cached[0] >= 288 and cached[1] >= 768, "all but the block of the last token"
