# SPDX-License-Identifier: Apache-2.0
"""`kvshm explain`: the first key that is missing, and why, as far as memory shows it."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import numpy as np
import pytest
from kvshm.tools.inspector import ghosts, layout
from support import shm_dir
from support.cli import Copy, kvshm_cli
from support.oracle import store

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/inspector.schema.json").read_text())
FIELDS: dict[str, Any] = {"model": "m", "weights": "w", "block_tokens": 16}
TOKENS = list(range(160))
N = 10


@pytest.fixture
def ident() -> Any:
    return kvshm.Identity(**FIELDS)


@pytest.fixture
def keys(ident: Any) -> Any:
    return ident.keys(TOKENS)


@pytest.fixture
def arena(arena_name: str, ident: Any) -> Iterator[Any]:
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=1024, identity=ident, pin="off",
                            helper=False, label="me") as one:
        yield one


Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def explain(arena: Any, keys: Any, tmp_path: Path) -> Explain:
    """The document, checked: its schema, the exit code, and that the text says the same."""
    file = tmp_path / "keys.txt"
    file.write_text("\n".join(bytes(key).hex() for key in keys))

    def ask(*more: str) -> dict[str, Any]:
        given = ("explain", arena.name, *(more if "--prompt" in more
                                          else ("--keys", str(file), *more)))
        done = kvshm_cli(*given, "--json")
        jsonschema.validate(done.json, SCHEMA)
        found: dict[str, Any] = done.json
        assert done.code == (0 if found["reason"] == "present" else 1) and not done.err
        shown = kvshm_cli(*given)
        assert shown.code == done.code and f"reason   {found['reason']}\n" in shown.out
        return found
    return ask


def test_present(arena: Any, keys: Any, explain: Explain) -> None:
    store(arena, keys).release()
    found = explain()
    assert (found["keys"], found["found"], found["missing"], found["key"]) == (N, N, None, None)
    assert found["reason"] == "present"


def test_never_stored(arena: Any, keys: Any, explain: Explain) -> None:
    store(arena, keys[:4]).release()
    found = explain()
    assert (found["found"], found["missing"], found["reason"]) == (4, 4, "never stored")
    assert found["key"] == bytes(keys[4]).hex() and found["block"] is None


def now_within(found: dict[str, Any], since: float) -> bool:
    """Its `when` is a time after `since`; clocks of seconds, one of them coarse."""
    when, now = datetime.fromisoformat(found["when"]).timestamp(), time.time()
    return bool(since - 2 <= when <= now and 0 <= found["seconds_ago"] <= now - since + 3)


@pytest.mark.parametrize("how", ["evict", "clear", "reset_inactive", "no_cache", "set_no_cache",
                                 "pressure"])
def test_gone(arena: Any, keys: Any, ident: Any, explain: Explain, how: str) -> None:
    begun = time.time()
    store(arena, keys[:6]).release()
    lease = store(arena, keys[6:], no_cache=how == "no_cache")
    if how == "set_no_cache":
        for handle in lease.handles:
            arena.set_no_cache(handle)
    assert explain()["reason"] == "present"
    lease.release()
    first, reason = (6, "closed") if "no_cache" in how else (0, "removed")
    if how == "evict":
        first = 6
        arena.evict(keys[6:])
    elif how == "pressure":
        reason = "evicted"
        store(arena, ident.keys(range(5000, 5000 + 16 * 16))).release()
    elif reason == "removed":
        getattr(arena, how)()
    found = explain()
    assert (found["missing"], found["reason"]) == (first, reason) and now_within(found, begun)
    store(arena, keys[first:]).release()
    assert explain()["reason"] == "present", "what is stored again is there"


def test_gone_by_another_process(arena: Any, keys: Any, explain: Explain, worker: Any) -> None:
    begun = time.time()
    store(arena, keys).release()
    other = worker("""
        import kvshm, sys
        ident = kvshm.Identity(**json.loads(sys.argv[2]))
        arena = kvshm.Arena.attach(sys.argv[1], identity=ident, helper=False)
        arena.allocate(10, keys=ident.keys(range(9000, 9000 + 160))).register().release()
        say(True)
        hear()
    """, arena.name, json.dumps(FIELDS))
    assert other.hear()
    other.process.kill()
    other.process.wait(10)
    found = explain()
    assert found["reason"] == "evicted" and now_within(found, begun)


class Remembered(Copy):
    """A copy of an arena whose keys were stored and removed a moment ago."""

    def __init__(self, arena: Any, keys: Any, folder: Path) -> None:
        store(arena, keys).release()
        arena.clear()
        super().__init__(Path(arena.path), folder)
        self.folder, self.key = folder, bytes(keys[0])
        first, ways, self.tag = ghosts.place(arena.blocks, self.key)
        self.set = self.ghosts[first:first + ways]

    def ask(self) -> dict[str, Any]:
        (self.folder / "keys").write_text(self.key.hex())
        done = self.cli("explain", "--keys", self.folder / "keys", "--json")
        jsonschema.validate(done.json, SCHEMA)
        assert done.code == 1 and not done.err
        found: dict[str, Any] = done.json
        return found


@pytest.fixture
def copy(arena: Any, keys: Any, tmp_path: Path) -> Remembered:
    made = Remembered(arena, keys[:4], tmp_path)
    assert made.ask()["reason"] == "removed"
    return made


def test_the_memory_is_of_this_key(copy: Remembered) -> None:
    """Other keys in its set, and its own tag in other sets, say nothing."""
    copy.set["tag"] = copy.tag ^ 1 << 63
    others = np.ones(len(copy.ghosts), bool)
    first, ways, _ = ghosts.place(len(copy.ghosts), copy.key)
    others[first:first + ways] = False
    copy.ghosts["tag"][others] = copy.tag
    copy.ghosts["gone"] = 1
    found = copy.ask()
    assert found["reason"] == "not remembered" and found["when"] is found["seconds_ago"] is None
    assert "4 blocks have left" in found["why"] and "room for 16 of them" in found["why"]
    begun = int(time.time())
    copy.superblock["created_at"] = begun - 100
    copy.set["tag"][3], copy.set["gone"][3] = copy.tag, 40 << 32 | 9 << 2 | 1
    found = copy.ask()
    assert found["reason"] == "evicted" and 60 <= found["seconds_ago"] <= 180
    assert datetime.fromisoformat(found["when"]).timestamp() == begun - 60


def test_later_keys_without_memory(arena: Any, keys: Any, tmp_path: Path) -> None:
    """A key that keys stand behind was there, even where the memory of it is lost."""
    store(arena, keys).release()
    arena.evict(keys[2:4])
    one = Copy(Path(arena.path), tmp_path)
    (tmp_path / "keys").write_text("".join(bytes(key).hex() for key in keys))
    ask = ("explain", "--keys", tmp_path / "keys", "--json")
    found = one.cli(*ask).json
    assert (found["missing"], found["reason"], found["later"]) == (2, "removed", 6)
    one.ghosts["gone"] = 0
    found = one.cli(*ask).json
    assert (found["reason"], found["later"], found["when"]) == ("evicted", 6, None)


@pytest.mark.parametrize("damage", ["zeros", "ones", "noise", "future", "reason", "creation"])
def test_a_damaged_memory(copy: Remembered, damage: str) -> None:
    """A wrong answer, or none; never an error."""
    at = copy.set["tag"] == copy.tag
    assert at.sum() == 1
    if damage == "noise":
        noise = np.random.default_rng(5).integers(0, 1 << 64, (len(copy.ghosts), 2), np.uint64)
        copy.ghosts["tag"], copy.ghosts["gone"] = noise.T
    elif damage in ("zeros", "ones"):
        copy.ghosts["tag"] = copy.ghosts["gone"] = {"zeros": 0, "ones": (1 << 64) - 1}[damage]
    elif damage == "future":
        copy.set["gone"][at] |= np.uint64(0xFFFFFFFF << 32)
    elif damage == "reason":
        copy.set["gone"][at] = 0
    else:
        copy.superblock["created_at"] = (1 << 64) - 1
    found = copy.ask()
    known = damage in ("future", "creation")
    assert found["reason"] == ("removed" if known else "not remembered") and found["when"] is None


def test_being_filled(arena: Any, keys: Any, explain: Explain, worker: Any) -> None:
    other = worker("""
        import kvshm, sys
        ident = kvshm.Identity(**json.loads(sys.argv[2]))
        arena = kvshm.Arena.attach(sys.argv[1], identity=ident, helper=False, label="filler")
        keys = ident.keys(json.loads(sys.argv[3]))
        fill = arena.allocate(len(keys) - 3, keys=keys[3:])
        say([h.id for h in fill.handles])
        hear()
    """, arena.name, json.dumps(FIELDS), json.dumps(TOKENS))
    ids = other.hear()
    store(arena, keys[:3]).release()
    found = explain()
    assert (found["missing"], found["reason"], found["pids"]) == (3, "filling", [other.pid])
    assert found["block"] == ids[0] and "filler" in found["why"] and "unann" not in found["why"]
    other.process.kill()
    other.process.wait(10)
    found = explain()
    assert (found["missing"], found["reason"]) == (3, "left") and "kvshm reap" in found["why"]
    assert found["block"] == ids[0], "a look gives nothing back"
    arena.reap()
    assert explain()["reason"] == "never stored", "it was never there as a whole"


def test_a_quiet_fill(arena: Any, keys: Any, explain: Explain) -> None:
    fill = arena.allocate(N, keys=keys, announce=False)
    found = explain()
    assert (found["missing"], found["reason"]) == (0, "filling") and "unannounced" in found["why"]
    fill.abort()


def test_a_duplicate(arena: Any, keys: Any, explain: Explain) -> None:
    """Stored while another one filled the key, who then gave up."""
    first = arena.allocate(1, keys=keys[:1])
    second = arena.allocate(1, keys=keys[:1], announce=False)
    block = second.handles[0].id
    second.copy_in(0, bytes(1024))
    kept = second.register()
    assert explain()["reason"] == "filling"
    first.abort()
    found = explain()
    assert (found["missing"], found["reason"], found["block"]) == (0, "duplicate", block)
    assert found["pids"] == [os.getpid()]
    kept.release()


@pytest.mark.parametrize("reason", ["private", "evicting"])
def test_what_a_moment_shows(arena: Any, keys: Any, tmp_path: Path, reason: str) -> None:
    """States that pass too fast for a test, made in a copy of the arena."""
    store(arena, keys).release()
    copy = Copy(Path(arena.path), tmp_path)
    held = int(np.flatnonzero((copy.hot["key"] == keys[2].view("<u8")).all(axis=1))[0])
    if reason == "private":
        copy.index[copy.index & np.uint64(0xFFFFFFFF) == held + 1] = 0
        copy.hot["flags"][held] |= layout.PRIVATE
    else:
        word = int(copy.hot["word"][held]) & ~(7 << layout.STATE_SHIFT)
        copy.hot["word"][held] = word | layout.EVICTING << layout.STATE_SHIFT
    (tmp_path / "keys").write_text("".join(bytes(key).hex() for key in keys))
    done = copy.cli("explain", "--keys", tmp_path / "keys", "--json")
    assert (done.json["missing"], done.json["reason"], done.json["block"]) == (2, reason, held)


@pytest.mark.parametrize("field", ["model", "weights", "dtype", "layout", "parallel", "namespace"])
def test_another_identity(arena: Any, keys: Any, ident: Any, explain: Explain, field: str,
                          tmp_path: Path) -> None:
    store(arena, keys).release()
    assert explain("--identity", ident.text)["reason"] == "present"
    other = kvshm.Identity(**{**FIELDS, field: "other"}).text
    found = explain("--identity", other)
    assert (found["reason"], found["missing"]) == ("identity", 0)
    assert found["fields"] == [{"field": field, "arena": json.loads(ident.text)[field],
                                "given": "other"}]
    (tmp_path / "identity").write_text(other)
    assert explain("--identity", f"@{tmp_path / 'identity'}")["fields"] == found["fields"]


def test_another_epoch(arena: Any, keys: Any, ident: Any, explain: Explain) -> None:
    store(arena, keys).release()
    arena.bump_epoch()
    found = explain("--identity", ident.text)
    assert found["reason"] == "epoch"
    assert found["fields"] == [{"field": "epoch", "arena": 1, "given": 0}]
    assert explain("--identity", ident.with_epoch(1).text)["reason"] == "present"


def test_tokens(arena: Any, keys: Any, ident: Any, explain: Explain, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(json.dumps(TOKENS))
    store(arena, keys[:7]).release()
    assert explain("--prompt", str(file))["missing"] == 7
    file.write_text(" ".join(map(str, TOKENS)))
    assert explain("--prompt", str(file))["key"] == bytes(keys[7]).hex()
    arena.bump_epoch()  # under the arena's present epoch
    assert explain("--prompt", str(file))["missing"] == 0
    store(arena, ident.with_epoch(1).keys(TOKENS)[:2]).release()
    assert explain("--prompt", str(file))["missing"] == 2
    assert explain("--prompt", str(file), "--identity", ident.text)["reason"] == "epoch"


@pytest.mark.parametrize(("given", "says"), [
    (["--keys", "/nowhere"], "No such file"),
    (["--keys", "BAD"], "32 hexadecimal digits"),
    (["--prompt", "BAD"], "wanted ids"),
    (["--prompt", "FEW"], "do not fill a block of 16"),
    (["--prompt", "LARGE"], "2^32"),
    (["--keys", "KEYS", "--identity", "{"], "--identity"),
    (["--keys", "KEYS", "--identity", "[]"], "no object"),
    (["--keys", "KEYS", "--identity", '{"modelx": "m"}'], "modelx"),
    (["--keys", "KEYS", "--prompt", "FEW"], "not allowed with"),
    ([], "required"),
])
def test_usage(arena: Any, tmp_path: Path, given: list[str], says: str) -> None:
    for name, text in (("BAD", "x1, y2"), ("FEW", "1 2 3"), ("KEYS", "ab" * 16),
                       ("LARGE", " ".join(["4294967296"] * 16))):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / one) if one.isupper() else one for one in given]
    done = kvshm_cli("explain", arena.name, *files)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_a_raw_arena_and_standard_input(new_name: Any, keys: Any, tmp_path: Path) -> None:
    with kvshm.Arena.create(new_name(), blocks=16, block_bytes=1024, helper=False) as raw:
        store(raw, keys).release()
        (tmp_path / "tokens").write_text(json.dumps(TOKENS))
        done = kvshm_cli("explain", raw.name, "--prompt", tmp_path / "tokens")
        assert done.code == 2 and "no identity" in done.err
        given = json.dumps({**FIELDS, "dtype": "bfloat16", "layout": "BLHNC"})
        assert kvshm_cli("explain", raw.name, "--prompt", tmp_path / "tokens", "--identity",
                         given).code == 0
        text = json.dumps([bytes(key).hex() for key in keys])
        code = f"kvshm.tools.cli explain {raw.name} --dir {shm_dir} --keys - -q".split()
        piped = subprocess.run([sys.executable, "-m", *code], input=text, text=True, timeout=60,
                               capture_output=True)
        assert (piped.returncode, piped.stdout, piped.stderr) == (0, "", "")
