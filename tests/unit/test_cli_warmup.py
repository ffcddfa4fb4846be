# SPDX-License-Identifier: Apache-2.0
"""`kvshm warmup`: what a tier has comes into memory, what it lifted stays, what it says of it."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import numpy as np
import pytest
from kvshm.tools.cli.lift import Lifter
from kvshm.tools.cli.prompt_list import read_key_lists, read_texts, read_tokens
from support.arenas import content, eventually, store
from support.cli import Outcome, kvshm_cli, spawn_cli

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/inspector.schema.json").read_text())
BLOCK, TOKENS = 4096, 16
FIELDS: dict[str, Any] = {"model": "m", "weights": "w", "block_tokens": TOKENS}
IDENT = kvshm.Identity(**FIELDS)
TIER = {"engine": "threads"}


def tokens_of(seed: int, blocks: int) -> list[int]:
    return list(range(10_000 * seed, 10_000 * seed + TOKENS * blocks))


def jsonl(path: Path, *lists: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in lists) + "\n")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def make(make_arena: Callable[..., Any], path: Path) -> Callable[..., Any]:
    def made(blocks: int = 32, **options: Any) -> Any:
        options = {"tier": path, "tier_size": "2MiB", "tier_options": TIER} | options
        arena = make_arena(blocks, BLOCK, identity=IDENT, helper=False, **options)
        assert eventually(lambda: arena.tier is None or arena.tier.state == kvshm.TierState.OK)
        return arena
    return made


def on_disk(arena: Any, keys: Any) -> None:
    """There, and not in memory."""
    store(arena, keys).release()
    assert arena.tier_drain(10)
    arena.evict(keys)
    assert (arena.presence(keys) == kvshm.Presence.G3).all()


def warmup(arena: Any, *argv: object, code: int = 0) -> dict[str, Any]:
    done = kvshm_cli("warmup", arena.name, *argv, "--json")
    assert done.code == code, done
    jsonschema.validate(done.json, SCHEMA)
    found: dict[str, Any] = done.json
    return found


def counts(found: dict[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(one[name] for name in ("blocks", "found", "lifted", "left", "missing"))
            for one in found["prompts"]]


def test_found_lifted_missing(make: Any, tmp_path: Path) -> None:
    """One prompt in memory, one on disk, one half there, one unknown, one too short for a block."""
    arena = make()
    prompts = [tokens_of(1, 3), tokens_of(2, 5), tokens_of(3, 4), tokens_of(4, 2), [1, 2, 3]]
    keys = [IDENT.keys(one) for one in prompts]
    on_disk(arena, keys[1])
    on_disk(arena, keys[2][:3])
    store(arena, keys[0]).release()
    found = warmup(arena, "--tokens", jsonl(tmp_path / "p", *prompts), code=1)
    assert counts(found) == [(3, 3, 0, 0, 0), (5, 0, 5, 0, 0), (4, 0, 3, 0, 1), (2, 0, 0, 0, 2),
                             (0, 0, 0, 0, 0)]
    assert [one["tokens"] for one in found["prompts"]] == [48, 80, 64, 32, 3]
    assert [one["lifted_tokens"] for one in found["prompts"]] == [0, 80, 48, 0, 0]
    totals = found["totals"]
    assert (totals["lifted"], totals["lifted_bytes"]) == (8, 8 * BLOCK) and not totals["failed"]
    assert found["stopped"] is None and found["files"] == str(tmp_path / "tier")
    for n, one in enumerate(keys[1:3]):
        with arena.match(one) as lease:
            assert len(lease) == (5, 3)[n]
            assert all(bytes(lease.view(i)[:]) == content(one[i]) for i in range(len(lease)))
    whole = jsonl(tmp_path / "whole", *prompts[:2])
    again = warmup(arena, "--tokens", whole)
    assert counts(again) == [(3, 3, 0, 0, 0), (5, 5, 0, 0, 0)]
    text = kvshm_cli("warmup", arena.name, "--tokens", whole)
    assert text.code == 0 and "2 prompts, 8 blocks of 16 tokens: 8 found, 0 lifted" in text.out
    assert kvshm_cli("warmup", arena.name, "--tokens", whole, "-q") == (0, "", "")


def test_a_shared_beginning_is_moved_once(make: Any, tmp_path: Path) -> None:
    arena = make()
    system = tokens_of(1, 4)
    prompts = [system + tokens_of(seed, 2) for seed in (2, 3, 4)]
    for one in prompts:
        on_disk(arena, IDENT.keys(one))
    before = arena.stats().tier_loaded_total
    found = warmup(arena, "--tokens", jsonl(tmp_path / "p", *prompts))
    assert counts(found) == [(6, 0, 6, 0, 0), (6, 4, 2, 0, 0), (6, 4, 2, 0, 0)]
    assert arena.stats().tier_loaded_total - before == 10


def test_keys(make: Any, tmp_path: Path) -> None:
    arena = make()
    first, second = IDENT.keys(tokens_of(1, 3)), IDENT.keys(tokens_of(2, 2))
    on_disk(arena, np.concatenate([first, second]))
    words = "\n\n".join("\n".join(bytes(key).hex() for key in one) for one in (first, second))
    (tmp_path / "k").write_text(words)
    found = warmup(arena, "--keys", tmp_path / "k")
    assert counts(found) == [(3, 0, 3, 0, 0), (2, 0, 2, 0, 0)]
    assert found["prompts"][0]["tokens"] is None and found["block_tokens"] == TOKENS


def test_it_never_evicts_what_it_lifted(make: Any, tmp_path: Path) -> None:
    """More on disk than memory has: it stops when what it may hold is held, and says so."""
    arena = make(blocks=20)
    prompts = [tokens_of(seed, 6) for seed in range(1, 7)]
    for one in prompts:
        on_disk(arena, IDENT.keys(one))
    before = arena.stats().evicted_total
    file = jsonl(tmp_path / "p", *prompts)
    found = warmup(arena, "--tokens", file, code=1)
    assert found["limit_blocks"] == 18 and found["stopped"] == "limit"
    assert counts(found) == [(6, 0, 6, 0, 0)] * 3 + [(6, 0, 0, 6, 0)] * 3
    assert arena.stats().evicted_total == before
    for one in prompts[:3]:
        assert (arena.presence(IDENT.keys(one)) & kvshm.Presence.G2 != 0).all()
    text = kvshm_cli("warmup", arena.name, "--tokens", file).out
    assert "stopped: 18 blocks are held" in text and "18 blocks left on disk alone" in text


@pytest.mark.parametrize(("limit", "blocks"), [("4", 4), ("50%", 10), ("0.25", 5), ("900", 20)])
def test_limit(make: Any, tmp_path: Path, limit: str, blocks: int) -> None:
    arena = make(blocks=20)
    on_disk(arena, IDENT.keys(tokens_of(1, 18)))
    file = jsonl(tmp_path / "p", tokens_of(1, 18))
    found = warmup(arena, "--tokens", file, "--limit", limit, code=blocks < 18)
    assert found["limit_blocks"] == blocks
    assert counts(found) == [(18, 0, min(18, blocks), max(0, 18 - blocks), 0)]


def test_memory_that_others_hold(make: Any, tmp_path: Path) -> None:
    """Nothing may be evicted for it: it stops, and takes from nobody."""
    arena = make(blocks=20)
    on_disk(arena, IDENT.keys(tokens_of(1, 10)))
    others = IDENT.keys(tokens_of(2, 14))
    with store(arena, others):
        found = warmup(arena, "--tokens", jsonl(tmp_path / "p", tokens_of(1, 10)), code=1)
        (prompt,) = found["prompts"]
        assert found["stopped"] == "full" and "held or being filled" in found["why"]
        assert 0 < prompt["lifted"] <= 6 and prompt["lifted"] + prompt["left"] == 10
        assert (arena.presence(others) & kvshm.Presence.G2 != 0).all()


def test_a_damaged_block_is_a_miss(make: Any, path: Path, tmp_path: Path) -> None:
    arena = make()
    keys = IDENT.keys(tokens_of(1, 5))
    on_disk(arena, keys)
    at = path.read_bytes().find(content(keys[2]))
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(b"?")
    found = warmup(arena, "--tokens", jsonl(tmp_path / "p", tokens_of(1, 5)), code=1)
    assert counts(found) == [(5, 0, 2, 0, 3)] and found["prompts"][0]["failed"] == 1
    assert found["stopped"] is None


def test_after_everybody_has_gone(make: Any, path: Path, tmp_path: Path) -> None:
    """No process has the tier open; the arena still names its file."""
    arena = make()
    on_disk(arena, IDENT.keys(tokens_of(1, 5)))
    name = arena.name
    arena.close()
    found = warmup(arena, "--tokens", jsonl(tmp_path / "p", tokens_of(1, 5)))
    assert counts(found) == [(5, 0, 5, 0, 0)] and found["name"] == name


def test_the_file_is_gone(make: Any, path: Path, tmp_path: Path) -> None:
    arena = make()
    arena.close()
    path.unlink()
    file = jsonl(tmp_path / "p", tokens_of(1, 5))
    done = usage(arena, "--tokens", file)
    assert f"{path}: there is no such file" in done.err and not path.exists()


def test_after_a_reboot(make: Any, make_arena: Any, path: Path, tmp_path: Path) -> None:
    """A new arena that has opened no tier yet: the file is told, and read back first."""
    first = make()
    on_disk(first, IDENT.keys(tokens_of(1, 5)))
    first.close()
    kvshm.remove(first.name)
    arena = make_arena(32, BLOCK, identity=IDENT, helper=False)
    file = jsonl(tmp_path / "p", tokens_of(1, 5))
    done = kvshm_cli("warmup", arena.name, "--tokens", file)
    assert done.code == 2 and "no tier" in done.err and "--tier FILE" in done.err
    found = warmup(arena, "--tokens", file, "--tier", path)
    assert counts(found) == [(5, 0, 5, 0, 0)] and found["files"] == str(path)


def test_salt_epoch_and_identity(make: Any, tmp_path: Path) -> None:
    arena = make()
    file = jsonl(tmp_path / "p", tokens_of(1, 3))
    on_disk(arena, IDENT.keys(tokens_of(1, 3), salt="tenant"))
    assert counts(warmup(arena, "--tokens", file, code=1)) == [(3, 0, 0, 0, 3)]
    assert counts(warmup(arena, "--tokens", file, "--salt", "tenant")) == [(3, 0, 3, 0, 0)]
    arena.bump_epoch()
    assert counts(warmup(arena, "--tokens", file, "--salt", "tenant", code=1)) == [(3, 0, 0, 0, 3)]
    other = kvshm.Identity(**FIELDS | {"model": "n"})
    given = json.dumps(json.loads(other.text))
    found = warmup(arena, "--tokens", file, "--identity", given, code=1)
    assert counts(found) == [(3, 0, 0, 0, 3)]


def test_it_leaves_nothing_behind(make: Any, tmp_path: Path) -> None:
    arena = make()
    on_disk(arena, IDENT.keys(tokens_of(1, 5)))
    warmup(arena, "--tokens", jsonl(tmp_path / "p", tokens_of(1, 5)))
    assert len(arena.processes()) == 1 and arena.stats().blocks_held == 0


def test_the_time_is_over(make: Any, tmp_path: Path) -> None:
    arena = make()
    keys = IDENT.keys(tokens_of(1, 5))
    on_disk(arena, keys)
    lifter = Lifter(arena, 32, time.monotonic(), lambda blocks: None)
    found = lifter.lift(keys)
    assert (found.lifted, found.left, lifter.stopped) == (0, 5, "timeout")
    lifter.close()
    done = kvshm_cli("warmup", arena.name, "--tokens", jsonl(tmp_path / "p", tokens_of(1, 5)),
                     "--timeout", "0.000001")
    assert done.code == 6 and "--timeout" in done.err and done.err.count("\n") == 1


def test_as_a_process_of_its_own(make: Any, tmp_path: Path) -> None:
    arena = make()
    on_disk(arena, IDENT.keys(tokens_of(1, 5)))
    process = spawn_cli("warmup", arena.name, "--tokens",
                        jsonl(tmp_path / "p", tokens_of(1, 5)), "--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert counts(json.loads(out)) == [(5, 0, 5, 0, 0)]


# ---- files of prompts ----------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "want"), [
    ("[1, 2]\n[3]\n", [[1, 2], [3]]), ("[[1, 2], [3]]", [[1, 2], [3]]), ("[1,\n2]", [[1, 2]]),
    ("1 2\n3\n", [[1, 2, 3]]), ("1 2\n\n\n3,4\n", [[1, 2], [3, 4]]), ("7", [[7]]), ("[]", [[]]),
])
def test_token_files(text: str, want: list[list[int]]) -> None:
    assert [one.tokens for one in read_tokens(text.encode(), "f", None)] == want


def test_key_files() -> None:
    a, b = "ab" * 16, "cd" * 16
    for text, want in ((f"{a}\n{b}", [2]), (f"{a}\n\n{b}", [1, 1]), (f'["{a}", "{b}"]', [2]),
                       (f'["{a}"]\n["{b}"]', [1, 1]), (f'[["{a}"], ["{b}"]]', [1, 1]),
                       (a + b, [2])):
        found = read_key_lists(text.encode(), "f")
        assert [0 if one.keys is None else len(one.keys) for one in found] == want


def test_text_files() -> None:
    plain = read_texts(b"Hello, you.\n\nAnd you.\n", "f", "s")
    assert [(one.text, one.salt) for one in plain] == [("Hello, you.", "s"), ("And you.", "s")]
    lines = ('"two\\nlines"', '{"prompt": "x", "cache_salt": "t"}', '{"prompt": [1, 2]}')
    found = read_texts("\n".join(lines).encode(), "f", "s")
    assert [(one.text, one.tokens, one.salt) for one in found] == [
        ("two\nlines", None, "s"), ("x", None, "t"), (None, [1, 2], "s")]


def usage(arena: Any, *argv: object) -> Outcome:
    done = kvshm_cli("warmup", arena.name, *argv)
    assert done.code == 2 and done.err.count("\n") == 1 and not done.out, done
    return done


@pytest.mark.parametrize(("option", "text", "says"), [
    ("--tokens", "x y", "no tokens"), ("--tokens", "", "no token ids"),
    ("--tokens", "[1]\n2", "no token ids"), ("--tokens", "[[1], 2]", "no token ids"),
    ("--tokens", "[1.5]", "no token ids"), ("--tokens", "[true]", "no tokens"),
    ("--tokens", str([1 << 32] * 16), "2^32"),
    ("--keys", "abc", "32 hexadecimal"), ("--keys", "", "no keys"),
    ("--prompts", "", "no prompts"), ("--prompts", '{"text": 1}', "no prompt"),
    ("--prompts", '"a"\nb', "line 2"), ("--prompts", "words", "--tokenizer"),
    ("--prompts", '{"prompt": "a", "cache_salt": 5}', "no prompt"),
])
def test_wrong_files(make: Any, tmp_path: Path, option: str, text: str, says: str) -> None:
    (tmp_path / "f").write_text(text)
    assert says in usage(make(), option, tmp_path / "f").err


def test_usage(make: Any, tmp_path: Path) -> None:
    arena, tokens = make(), jsonl(tmp_path / "p", [1] * 16)
    assert "required" in usage(arena).err
    assert "not allowed with" in usage(arena, "--tokens", tokens, "--keys", tokens).err
    assert "No such file" in usage(arena, "--tokens", tmp_path / "no").err
    assert "no such file" in usage(arena, "--tokens", tokens, "--tier", tmp_path / "no").err
    assert "need --engine" in usage(arena, "--tokens", tokens, "--model", "m").err
    assert "share" in usage(arena, "--tokens", tokens, "--limit", "200%").err
    assert not (tmp_path / "no").exists()
    assert kvshm_cli("warmup", "not-there", "--tokens", tokens).code == 3


def test_a_tokenizer(make: Any, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {f"w{i}": i for i in range(100)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    arena = make()
    on_disk(arena, IDENT.keys(list(range(32))))
    (tmp_path / "p").write_text(" ".join(f"w{i}" for i in range(40)) + "\n")
    found = warmup(arena, "--prompts", tmp_path / "p", "--tokenizer", tmp_path)
    assert counts(found) == [(2, 0, 2, 0, 0)] and found["prompts"][0]["tokens"] == 40
