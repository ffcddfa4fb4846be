# SPDX-License-Identifier: Apache-2.0
"""A small Llama with random weights as a GGUF file: enough to show that a state is that state."""
from pathlib import Path

import gguf
import numpy as np

BYTES = [b"<0x%02X>" % i for i in range(256)]  # the vocabulary: every byte, and three marks


def write(path: Path, layers: int = 8, width: int = 512, heads: int = 8, seed: int = 1) -> None:
    """Write the model of this shape and seed to `path`."""
    rng = np.random.default_rng(seed)
    out = gguf.GGUFWriter(str(path), "llama")
    inner = 2 * width
    out.add_context_length(4096)
    out.add_embedding_length(width)
    out.add_block_count(layers)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(width // heads)
    tokens = [b"<unk>", b"<s>", b"</s>", *BYTES]
    kind = gguf.TokenType
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types([kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256])

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), np.float32) / np.sqrt(columns)
        out.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(name: str) -> None:
        out.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", len(tokens), width)
    matrix("output", len(tokens), width)
    norm("output_norm")
    for i in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            norm(f"blk.{i}.{name}")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}", width, width)
        matrix(f"blk.{i}.ffn_gate", inner, width)
        matrix(f"blk.{i}.ffn_up", inner, width)
        matrix(f"blk.{i}.ffn_down", width, inner)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
