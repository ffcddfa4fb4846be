# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, as local folders: made once from a seed, kept in the user's
cache folder. Random weights of some size give lively greedy tokens, so that equal tokens mean
something; the ready-made `load_format="dummy"` does not.

    tiny-llama      4 layers, 2 KV heads, 5 M parameters
    llama-109m      8 layers, 8 KV heads, 109 M parameters
    tiny-gemma3     3 layers with a sliding window of 64 tokens, 1 without: several KV groups
    lora-a, lora-b  adapters for tiny-llama, in PEFT's format
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..environments import Absent, cache

HERE = Path(__file__).resolve().parent
LIMIT = 300  # seconds, for making what is missing
SEED = 11


def folder_of(name: str) -> Path:
    """Where it lies, or will: another one whenever the code that makes it changes."""
    digest = hashlib.sha256()
    for source in ("models.py", "tokenizer.py"):
        digest.update((HERE / source).read_bytes())
    return cache() / "models" / f"{name}-{digest.hexdigest()[:12]}"


def models(python: Path, *names: str) -> dict[str, Path]:
    """Their folders. What is missing is made by that interpreter, which has torch and
    transformers."""
    folders = {name: folder_of(name) for name in names}
    missing = [name for name, folder in folders.items() if not folder.is_dir()]
    if missing:
        from .overlay import overlay  # imports kvshm, which makers do not need

        with tempfile.TemporaryDirectory(prefix="kvshm-") as scratch:
            path = overlay(python, Path(scratch, "python"))
            made = subprocess.run(
                [str(python), "-m", __name__, *missing],
                env={**os.environ, "PYTHONPATH": str(path)}, timeout=LIMIT, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if made.returncode != 0:
            raise Absent(f"models {' '.join(missing)}: {made.stdout.strip()[-2000:]}")
    return folders


def main(names: list[str]) -> None:
    for name in names:
        folder = folder_of(name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever holds it is under LIMIT
            if folder.is_dir():
                continue
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            MAKERS[name](part)
            part.rename(folder)


def _fill(model: Any, std: float, norms: float, after: float) -> None:
    """after: the weight of the norms that end a block of Gemma-3."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if weights.ndim > 1:
                weights.normal_(0, std, generator=generator)
            else:
                weights.fill_(after if ".post_" in name else norms)


def _save(folder: Path, model: Any, vocabulary: int) -> None:
    import torch

    from .tokenizer import write_tokenizer

    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder, vocabulary)


def _llama(folder: Path, vocabulary: int, **shape: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, head_dim=64, max_position_embeddings=131072,
        tie_word_embeddings=False, bos_token_id=256, eos_token_id=257, **shape))
    _fill(model, 0.08, 1.0, 1.0)
    _save(folder, model, vocabulary)


def _tiny_llama(folder: Path) -> None:
    _llama(folder, 2048, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
           num_attention_heads=4, num_key_value_heads=2)


def _llama_109m(folder: Path) -> None:
    _llama(folder, 7168, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
           num_attention_heads=16, num_key_value_heads=8)


def _tiny_gemma3(folder: Path) -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    sliding, full = "sliding_attention", "full_attention"
    model = Gemma3ForCausalLM(Gemma3TextConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=64,
        layer_types=[sliding, sliding, sliding, full], max_position_embeddings=131072,
        query_pre_attn_scalar=64, bos_token_id=256, eos_token_id=257, pad_token_id=0,
        # As its output matrix, its embedding would make each token predict itself.
        tie_word_embeddings=False))
    _fill(model, 0.08, 0.0, 4.0)
    _save(folder, model, 2048)


def _lora(folder: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    rank, hidden, weights = 8, 256, {}
    for layer in range(4):
        for part, out in (("q_proj", 256), ("v_proj", 128)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            for side, shape in (("A", (rank, hidden)), ("B", (out, rank))):
                values = torch.empty(shape).normal_(0, 0.2, generator=generator)
                weights[f"{name}.lora_{side}.weight"] = values.to(torch.bfloat16)
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
        "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny-llama"}), encoding="utf-8")


MAKERS: dict[str, Callable[[Path], None]] = {
    "tiny-llama": _tiny_llama,
    "llama-109m": _llama_109m,
    "tiny-gemma3": _tiny_gemma3,
    "lora-a": lambda folder: _lora(folder, SEED + 1),
    "lora-b": lambda folder: _lora(folder, SEED + 2),
}

if __name__ == "__main__":
    main(sys.argv[1:])
