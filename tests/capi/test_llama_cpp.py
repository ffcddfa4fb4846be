# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, by its own C API, writes a sequence's state straight into an object and reads it from
there: examples/llama_cpp, each process one of its own."""
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvshm
import numpy as np
import pytest
from support.envs import packages

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama_cpp"
PINS = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "pyyaml==6.0.4")
TOKENS = 500
WHOLE = 448  # of them in the state
MODEL = {"layers": 4, "width": 256, "heads": 4}
STATE = 4 * 256 * 2 * 2  # bytes a token: K and V of all layers, 16 bits each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = [str(packages(*PINS)), str(EXAMPLE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture(scope="module")
def model(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    code = f"import pathlib, tiny_model; tiny_model.write(pathlib.Path({str(path)!r}), **{MODEL})"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    return path


@pytest.fixture
def run(environment: dict[str, str], model: Path, arena_name: str) -> Any:
    def start(role: str = "serve", tokens: int = TOKENS) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE / "share_state.py"), role, "--model", str(model),
             "--arena", arena_name, "--tokens", str(tokens), "--block-bytes", "128KiB"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            timeout=240)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return start


def logits(said: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(said["logits"]), np.float32)


def test_a_state_saved_by_one_process_is_restored_by_another(run, arena_name):
    first = run()
    assert first["in_place"] and "restored" not in first
    assert first["saved"] > WHOLE * STATE  # all of it, over a dozen blocks
    second = run()
    assert second["restored"] == first["saved"] and "saved" not in second
    assert logits(first).size == 259 and np.isfinite(logits(first)).all()
    assert np.abs(logits(first) - logits(second)).max() == 0.0
    # The same without any arena; and the tokens before the last few do matter.
    assert (logits(run("alone")) == logits(first)).all()
    assert (logits(run("alone", TOKENS - 1)) != logits(first)).any()
    with kvshm.Arena.attach(arena_name) as arena:
        assert arena.is_valid() == []
        stats = arena.stats()
        assert stats["copy_in_bytes_total"] == stats["copy_out_bytes_total"] == 0
        assert stats["blocks_held"] == 0
        assert stats["blocks_inactive"] == -(-first["saved"] // arena.block_bytes)


def test_a_fragmented_arena_serves_it_by_copies(run, arena_name):
    first = run()
    with kvshm.Arena.attach(arena_name) as arena:
        arena.clear()
        fill = arena.allocate(arena.stats()["blocks_free"])
        for_others = fill.ids[::2]
        views = [fill.view(i) for i in range(1, len(fill), 2)]  # these stay taken
        fill.abort()
        assert len(for_others) * arena.block_bytes > 2 * first["saved"]
        scattered = run()
        assert scattered["saved"] == first["saved"] and not scattered["in_place"]
        again = run()
        assert again["restored"] == first["saved"]
        assert (logits(again) == logits(first)).all()
        for view in views:
            view.release()


def test_a_damaged_state_shows(run, model, environment, arena_name):
    """The comparison above can fail: with other bytes in the object the logits are others."""
    first = run()
    with kvshm.Arena.attach(arena_name) as arena:
        parts = [i for i in range(arena.blocks) if arena.block(i).state == kvshm.State.READY]
        assert len(parts) > 12
        # Some values, no more: what describes the state would be found out by llama.cpp.
        place = parts[len(parts) // 2] * arena.block_bytes + arena.block_bytes // 2
        np.memmap(arena.path, np.uint8, "r+", arena.info().data_offset + place, (512,))[:] ^= 0x11
    second = run()
    assert second["restored"] == first["saved"]
    assert (logits(second) != logits(first)).any()


def test_the_example_as_its_readme_says(environment, model, arena_name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "share_state.py"), "--model", str(model), "--tokens", "100",
         "--arena", arena_name], env=environment, stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.endswith("logits are equal\n")
    assert arena_name not in kvshm.shm.names()  # it cleared up after itself
