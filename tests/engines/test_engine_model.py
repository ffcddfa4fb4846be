# SPDX-License-Identifier: Apache-2.0
"""The demo's model and engine by themselves: paged equals dense, and reuse changes no bit."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from kvshm.tools.engine import prompts, tokens  # noqa: E402
from kvshm.tools.engine.config import TINY, ModelConfig  # noqa: E402
from kvshm.tools.engine.engine import Answer, Engine  # noqa: E402
from kvshm.tools.engine.kv import LocalCache, OffCache  # noqa: E402
from kvshm.tools.engine.model import Model  # noqa: E402

BLOCK = 16


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Model(TINY, BLOCK)
    torch.set_num_threads(threads)


def new_engine(model: Model) -> Engine:
    return Engine(model, LocalCache(TINY, BLOCK), OffCache(TINY, BLOCK))


def ask(engine: Engine, prompt: list[int], reuse: bool = True, new: int = 6) -> Answer:
    return engine.generate(prompt, new, reuse, lambda *_: None, lambda _: None)


def text(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=generator).tolist()


def rotate(x, positions, config: ModelConfig):
    half = config.head_dim // 2
    angles = positions[:, None] * config.rope_theta ** (-torch.arange(half).double() / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def dense_logits(model: Model, ids: list[int]):
    """The same transformer written the plain way, in double precision and in one piece."""
    config, weights = model.config, model.weights
    positions = torch.arange(len(ids)).double()
    mask = torch.full((len(ids), len(ids)), -math.inf).double().triu(1)

    def norm(x, weight):
        return x * (x.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt() * weight.double()

    x = weights.embedding[torch.tensor(ids)].double()
    for layer in weights.layers:
        qkv = norm(x, layer.attention_norm) @ layer.qkv.double().T
        qkv = qkv.view(len(ids), -1, config.head_dim)
        q = rotate(qkv[:, : config.heads], positions, config)
        k = rotate(qkv[:, config.heads : config.heads + config.kv_heads], positions, config)
        v = qkv[:, config.heads + config.kv_heads :]
        group = config.heads // config.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim) + mask
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        x = x + mixed.reshape(len(ids), -1) @ layer.out.double().T
        gate, up = (norm(x, layer.ffn_norm) @ layer.gate_up.double().T).chunk(2, -1)
        x = x + (gate / (1 + (-gate).exp()) * up) @ layer.down.double().T
    return norm(x, weights.final_norm)[-1] @ weights.logits.double().T


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_paged_attention_equals_dense_attention(model, length):
    prompt = text(length, length)
    answer = ask(new_engine(model), prompt, reuse=False)
    for i, row in enumerate(answer.logits):
        dense = dense_logits(model, prompt + answer.tokens[:i])
        assert (row.double() - dense).abs().max() < 1e-4


def test_bytes_beyond_the_written_tokens_do_not_matter(model):
    """Blocks of a shared arena come with what a former life left in them, NaNs for instance."""
    prompt = text(70, 5)
    blocks, position, logits = [], 0, None
    while position < len(prompt):
        blocks.append(torch.full(TINY.block_shape(BLOCK), math.nan))
        logits = model.forward(prompt[position : position + BLOCK], position, blocks)
        position += BLOCK
    assert torch.equal(logits, ask(new_engine(model), prompt).logits[0])


def test_reuse_changes_no_bit(model):
    engine = new_engine(model)
    shared = text(150, 1)
    first = ask(engine, shared + text(20, 2), new=1)
    assert first.reused == []
    prompt = shared + text(40, 3)
    warm, cold = ask(engine, prompt), ask(engine, prompt, reuse=False)
    assert len(warm.reused) == 150 // BLOCK
    assert warm.chunks == cold.chunks[len(warm.reused) :]
    assert torch.equal(warm.logits, cold.logits)
    assert warm.tokens == cold.tokens


def test_reuse_of_decoded_blocks_is_equal_up_to_rounding(model):
    engine = new_engine(model)
    prompt = text(45, 7)
    answer = ask(engine, prompt, new=40)
    follow_up = [*prompt, *answer.tokens, *text(5, 8)]
    warm, cold = ask(engine, follow_up), ask(engine, follow_up, reuse=False)
    assert len(warm.reused) == (45 + 39) // BLOCK
    assert (warm.logits[0] - cold.logits[0]).abs().max() <= 1e-4


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token(model):
    engine = new_engine(model)
    prompt = text(4 * BLOCK, 9)
    cold = ask(engine, prompt)
    warm = ask(engine, prompt)
    assert len(warm.reused) == 3
    assert torch.equal(warm.logits, cold.logits)


def test_a_wrong_block_shows_in_the_logits(model):
    """The comparison of logits is worth something only if the model looks at its KV."""
    engine = new_engine(model)
    prompt = text(100, 11)
    cold = ask(engine, prompt)
    block = engine.cache.store.get(ask(engine, prompt).reused[2])
    block.neg_()
    assert (ask(engine, prompt).logits[0] - cold.logits[0]).abs().max() > 1e-2


def test_weights_follow_from_the_seed(model):
    again = Model(TINY, BLOCK)
    assert torch.equal(again.weights.layers[1].down, model.weights.layers[1].down)
    other = Model(ModelConfig(**{**TINY.__dict__, "seed": 1}), BLOCK)
    assert not torch.equal(other.weights.embedding, model.weights.embedding)
    assert other.config.fingerprint("2") != model.config.fingerprint("2")
    assert model.config.fingerprint("2") != model.config.fingerprint("3")
    weights = model.weights
    counted = sum(
        t.numel() for layer in weights.layers for t in vars(layer).values()
    ) + sum(t.numel() for t in (weights.embedding, weights.final_norm, weights.logits))
    assert counted == TINY.parameters()


def test_forward_refuses_tokens_outside_the_last_block(model):
    blocks = [torch.empty(TINY.block_shape(BLOCK))]
    with pytest.raises(ValueError, match="5 tokens at 14"):
        model.forward([1] * 5, 14, blocks)


def test_tokens_are_bytes_and_marks():
    turn = tokens.system_turn("Zürich")
    assert turn[:2] == [tokens.BEGIN, tokens.SYSTEM]
    assert tokens.decode(turn) == "<begin><system>Zürich<end>"
    assert max(tokens.user_turn("?")) < tokens.VOCAB == TINY.vocab


def test_the_shipped_prompts_are_what_the_demo_needs():
    shipped = prompts.load(prompts.SHIPPED)
    assert len(shipped.system.encode()) >= 2000
    assert len(shipped.conversations) >= 8
    assert all(len(c.turns) >= 2 for c in shipped.conversations)


GOOD = "# note\n== system\nBe brief.\n== conversation: a\nuser: one\n  more\nuser: two\n"


def test_prompts_format():
    parsed = prompts.parse(GOOD)
    assert parsed.system == "Be brief."
    assert parsed.conversations == [prompts.Conversation("a", ["one more", "two"])]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("hello\n" + GOOD, "prompts:1: text before the first section"),
        (GOOD.replace("== system", "== sistem"), "prompts:2: unknown section 'sistem'"),
        (GOOD.replace("user: one", "one"), "prompts:5: expected 'user: ...'"),
        (GOOD + "== system\nx", "prompts:8: a second system prompt"),
        (GOOD + "== conversation: b\n", "'b' needs at least one 'user:' line"),
        ("== system\nx\n", "no conversation"),
        ("== conversation: a\nuser: b\n", "no system prompt"),
    ],
)
def test_a_broken_prompts_file_is_named_exactly(broken, message):
    with pytest.raises(prompts.PromptsError, match=message):
        prompts.parse(broken)


def test_a_missing_prompts_file_is_named(tmp_path):
    with pytest.raises(prompts.PromptsError, match="nowhere.txt: No such file"):
        prompts.load(tmp_path / "nowhere.txt")
