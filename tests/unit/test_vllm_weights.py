# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a vLLM model's weights, and the digest of an adapter's (S30)."""
from __future__ import annotations

import json
import logging
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace as NS
from typing import Any

import kvshm
import pytest
from kvshm.connectors.vllm import adapters
from kvshm.connectors.vllm.adapters import adapter_digest
from kvshm.connectors.vllm.weights import fingerprint, model_name, snapshot

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
NAMES = [f"layers.{i}.{part}" for i in range(4) for part in ("q", "k", "v", "o")]


def write_safetensors(path: Path, tensors: dict[str, bytes], tail: bytes = b"") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()) + tail)


def tensors(seed: int = 1) -> dict[str, bytes]:
    rng = random.Random(seed)
    large = {name: rng.randbytes(20_000) for name in NAMES}
    return large | {"bias": rng.randbytes(10), "none": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 8}')
    (model / "tokenizer.json").write_text("{}")
    write_safetensors(model / "model-1.safetensors", tensors(1))
    write_safetensors(model / "model-2.safetensors", tensors(2))
    return model


def of(model: Any, *, revision: str | None = None, load: str = "auto", env: Any = None,
       download_dir: str | None = None, model_weights: str = "", seed: int = 0,
       **options: Any) -> str:
    return fingerprint(NS(model=str(model), revision=revision, model_weights=model_weights,
                          seed=seed),
                       load, kvshm.Config.resolve(options, {}), download_dir=download_dir,
                       env={} if env is None else env)


def test_a_folder(folder: Path, tmp_path: Path) -> None:
    found = of(folder)
    assert found.startswith("blake2b-sample:") and of(folder) == found
    twin = tmp_path / "elsewhere"
    shutil.copytree(folder, twin)  # other inodes, times and path, same content
    assert of(twin) == found
    (twin / "tokenizer.json").write_text("[]")
    (twin / "model.bin").write_bytes(b"vLLM loads safetensors where there are any")
    assert of(twin) == found
    assert of(folder, weights_check="full") == of(folder, weights_check="full") != found


@pytest.mark.parametrize("check", ["sample", "full"])
@pytest.mark.parametrize("name", ["layers.0.q", "layers.3.o", "bias"])
def test_every_tensor_counts(folder: Path, check: str, name: str) -> None:
    before = of(folder, weights_check=check)
    data = tensors(2)
    changed = random.Random(9).randbytes(len(data[name]))  # as training does: every byte
    write_safetensors(folder / "model-2.safetensors", data | {name: changed})
    assert of(folder, weights_check=check) != before


@pytest.mark.parametrize("change", ["config", "dtype", "name", "order", "file", "size", "code"])
def test_what_else_counts(folder: Path, change: str) -> None:
    before = of(folder)
    path, data = folder / "model-2.safetensors", tensors(2)
    if change == "config":
        (folder / "config.json").write_text('{"hidden_size": 9}')
    elif change == "dtype":
        path.write_bytes(path.read_bytes().replace(b'"U8"', b'"I8"', 1))
    elif change == "name":
        path.write_bytes(path.read_bytes().replace(b"layers.0.q", b"layers.0.Q", 1))
    elif change == "order":
        write_safetensors(path, dict(reversed(data.items())))
    elif change == "file":
        path.rename(folder / "model-3.safetensors")
    elif change == "size":
        write_safetensors(path, data, tail=b"\0")
    else:
        (folder / "modeling_tiny.py").write_text("1")
    assert of(folder) != before


def test_full_sees_what_a_sample_cannot(folder: Path) -> None:
    sample, full = of(folder), of(folder, weights_check="full")
    path = folder / "model-2.safetensors"
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1  # the first byte of a tensor of 20,000
    path.write_bytes(data)
    assert of(folder) == sample and of(folder, weights_check="full") != full


@pytest.mark.parametrize("header", [
    b"", b"\xff" * 8, struct.pack("<Q", 4) + b"text", struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 10) + b'{"a": "b"}',
    struct.pack("<Q", 30) + b'{"a":{"data_offsets":[-9, 5]}}',
    struct.pack("<Q", 40) + b"[" * 40])
def test_a_damaged_header_is_a_file_like_others(folder: Path, header: bytes) -> None:
    path = folder / "model-2.safetensors"
    path.write_bytes(header + bytes(5000))
    before = of(folder)
    path.write_bytes(header + b"\1" + bytes(4999))
    assert of(folder) != before


@pytest.mark.parametrize("suffix", ["bin", "pt", "gguf"])
def test_other_formats(tmp_path: Path, suffix: str) -> None:
    model = tmp_path / "other"
    model.mkdir()
    path = model / f"model.{suffix}"
    data = bytearray(random.Random(3).randbytes(3 << 20))
    path.write_bytes(data)
    before = of(model), of(path)
    data[2 << 20] ^= 1  # in the third sample
    path.write_bytes(data)
    assert of(model) != before[0] and of(path) != before[1]


def hub(cache: Path, ref: str = "main", commit: str = COMMIT) -> Path:
    top = cache / "models--org--tiny"
    folder = top / "snapshots" / commit
    folder.mkdir(parents=True)
    (top / "refs").mkdir(exist_ok=True)
    (top / "refs" / ref).write_text(commit)
    write_safetensors(folder / "model.safetensors", tensors())
    return folder


def test_a_hub_repository_is_its_commit(tmp_path: Path) -> None:
    folder = hub(tmp_path / "hub")
    hub(tmp_path / "hub", "next", OTHER)
    homes: list[dict[str, str]] = [
        {"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub")},
        {"HUGGINGFACE_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/nowhere"}]
    for env in homes:
        assert of("org/tiny", env=env) == f"commit:{COMMIT}"
        assert of("org/tiny", revision="next", env=env) == f"commit:{OTHER}"
        assert of("org/tiny", revision=OTHER, env=env) == f"commit:{OTHER}"
    assert of("org/tiny", download_dir=str(tmp_path / "hub")) == f"commit:{COMMIT}"
    assert of(folder) == f"commit:{COMMIT}", "as vLLM names it where it is offline"
    assert of("org/tiny", env=homes[0], weights_check="full").startswith("blake2b:")
    assert model_name(str(folder)) == model_name("org/tiny") == "org/tiny"
    assert snapshot("org/tiny", "../refs", str(tmp_path / "hub")) is None


@pytest.mark.parametrize("damage", ["no ref", "no snapshot", "bad ref"])
def test_a_hub_repository_that_is_not_there(tmp_path: Path, damage: str) -> None:
    folder = hub(tmp_path)
    ref = tmp_path / "models--org--tiny" / "refs" / "main"
    if damage == "no ref":
        ref.unlink()
    elif damage == "no snapshot":
        shutil.rmtree(folder)
    else:
        ref.write_bytes(b"\xff../../x")
    with pytest.raises(kvshm.Unsupported, match="set the option weights"):
        of("org/tiny", download_dir=str(tmp_path))


def test_what_cannot_be_told_is_refused(tmp_path: Path, folder: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for model, more in ((empty, {}), ("s3://bucket/x", {}), (folder, {"model_weights": "s3://x"})):
        with pytest.raises(kvshm.Unsupported, match="set the option weights") as refused:
            of(model, **more)
        assert 'weights_check="name"' in str(refused.value)
        assert of(model, weights="mine", **more) == "mine"
        assert of(model, weights_check="name", **more) == ""
        assert of(model, weights_check="name", revision="v2", **more) == "revision:v2"
    broken = folder / "model-9.safetensors"
    broken.symlink_to(folder / "missing")
    assert of(folder).startswith("blake2b-sample:"), "a dangling link is no file"
    broken.unlink()
    os.mkfifo(folder / "model-9.safetensors")
    assert of(folder).startswith("blake2b-sample:"), "nor is a pipe, and nobody waits for it"


def test_dummy_weights(folder: Path, tmp_path: Path) -> None:
    found = of(folder, load="dummy")
    assert found.startswith("dummy:") and of(folder, load="dummy") == found != of(folder)
    assert of(folder, load="dummy", seed=1) != found
    (folder / "config.json").write_text("{}")
    assert of(folder, load="dummy") != found
    assert of("org/a", load="dummy") != of("org/b", load="dummy")


def test_a_70b_model_stays_under_a_second(tmp_path: Path) -> None:
    """30 files of 5 GB (sparse), 24 tensors each; the figure goes into the record."""
    model = tmp_path / "big"
    model.mkdir()
    for i in range(30):
        header = {f"t{i}.{j}": {"dtype": "BF16", "shape": [8192, 12288],
                                "data_offsets": [j * 201326592, (j + 1) * 201326592]}
                  for j in range(24)}
        text = json.dumps(header).encode()
        with open(model / f"{i:02}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + 24 * 201326592)
    began = time.process_time(), time.monotonic()
    of(model)
    spent, took = time.process_time() - began[0], time.monotonic() - began[1]
    print(f"fingerprint of 720 tensors in 30 files: {1e3 * took:.1f} ms, "
          f"{1e3 * spent:.1f} ms of processor time")
    assert spent < 1


# Adapters

@pytest.fixture
def lora(tmp_path: Path) -> Path:
    adapters._seen.clear()
    path = tmp_path / "lora"
    path.mkdir()
    (path / "adapter_config.json").write_text('{"r": 8}')
    write_safetensors(path / "adapter_model.safetensors", {"a": bytes(9000)})
    return path


def request(path: Any, name: str = "x", number: int = 1, **more: Any) -> NS:
    return NS(lora_name=name, lora_int_id=number, lora_path=str(path), **more)


def rewrite(path: Path, byte: int) -> None:
    write_safetensors(path / "adapter_model.safetensors", {"a": bytes([byte]) * 9000})


def test_five_disjoint_adapters(lora: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(lora, other)
    found = [adapter_digest(None), adapter_digest(request(lora)), adapter_digest(request(other)),
             adapter_digest(request(lora, name="y"))]
    rewrite(lora, 1)
    found.append(adapter_digest(request(lora, number=2)))  # loaded anew: vLLM gives a new id
    assert found[0] == b"" and {len(one) for one in found[1:]} == {16}
    assert len(set(found)) == 5
    assert adapter_digest(request(lora, number=2)) == found[4]
    assert adapter_digest(request(lora, number=7)) == found[4], "the id alone is no difference"


def elsewhere(path: Path, name: str = "x") -> bytes:
    """What another process says."""
    code = (f"from types import SimpleNamespace as NS\n"
            f"from kvshm.connectors.vllm.adapters import adapter_digest\n"
            f"print(adapter_digest(NS(lora_name={name!r}, lora_int_id=5, "
            f"lora_path={str(path)!r})).hex())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=True)
    return bytes.fromhex(done.stdout)


def test_processes_agree_while_the_files_do(lora: Path) -> None:
    assert adapter_digest(request(lora)) == elsewhere(lora)
    rewrite(lora, 1)
    assert adapter_digest(request(lora, number=2)) == elsewhere(lora)
    assert adapter_digest(request(lora / "missing")) != elsewhere(lora / "missing")


def test_files_that_change_under_an_adapter_in_use(lora: Path,
                                                   caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows which of them vLLM has in memory: shared with no other process."""
    before = adapter_digest(request(lora))
    rewrite(lora, 1)
    with caplog.at_level(logging.WARNING, "kvshm"):
        after = adapter_digest(request(lora))
    assert after not in (before, elsewhere(lora)) and "changed while it is in use" in caplog.text
    assert adapter_digest(request(lora)) == after
    # Loaded in place, the new files are what vLLM has.
    rewrite(lora, 2)
    assert adapter_digest(request(lora, load_inplace=True)) == elsewhere(lora)


def test_the_files_are_read_once(lora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = adapter_digest(request(lora))
    monkeypatch.setattr(adapters, "add_file", None)
    assert adapter_digest(request(lora)) == first


def test_an_unreadable_adapter(lora: Path) -> None:
    missing = lora / "missing"
    found = {adapter_digest(request(missing, number=n)) for n in (1, 2)}
    assert len(found) == 2 and adapter_digest(request(missing)) in found
    assert adapter_digest(request("org/not-there")) not in found
    (lora / "empty").mkdir()
    assert adapter_digest(request(lora / "empty", number=1)) != adapter_digest(
        request(lora / "empty", number=2))


def test_a_large_adapter_is_sampled(lora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(adapters, "add_file", lambda to, path, full: asked.append(full))
    with open(lora / "adapter_model.safetensors", "r+b") as file:
        file.truncate((1 << 30) + 1)
    adapter_digest(request(lora))
    assert asked == [False, False]
    with open(lora / "adapter_model.safetensors", "r+b") as file:
        file.truncate(1 << 20)
    adapter_digest(request(lora, number=2))
    assert asked[2:] == [True, True]
