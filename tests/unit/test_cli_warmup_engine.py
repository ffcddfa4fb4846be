# SPDX-License-Identifier: Apache-2.0
"""`kvshm warmup --engine`: prompts through an HTTP server that keeps its blocks in the arena."""
from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import pytest
from support.arenas import eventually, store
from support.cli import Outcome, kvshm_cli, read_terminal, spawn_cli

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/inspector.schema.json").read_text())
FIELDS: dict[str, Any] = {"model": "m", "weights": "w", "block_tokens": 16}
IDENT = kvshm.Identity(**FIELDS)

# What it does is the first part of the path: /ok/v1/completions computes and stores.
SERVER = """
import http.server, kvshm, threading, time
ident = kvshm.Identity(**json.loads(sys.argv[2]))
arena = kvshm.Arena.attach(sys.argv[1], helper=False)
asked = []

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def how(self): return self.path.split("/")[1]

    def do_GET(self):
        if self.path == "/asked": return self.answer(200, asked)
        if self.how() == "silent": time.sleep(30)
        if self.how() == "nothing": return self.answer(200, {"data": []})
        if self.how() == "locked" and self.headers["Authorization"] != "Bearer secret":
            return self.answer(401, {"error": {"message": "who are you?"}})
        if self.how() == "page": return self.answer(200, b"<html>welcome</html>", "text/html")
        self.answer(200, {"object": "list", "data": [{"id": "the-model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(body)
        how, prompt = self.how(), body["prompt"]
        if how == "busy": return self.answer(503, b"try later", "text/plain")
        if how == "short" and len(prompt) > 50:
            return self.answer(400, {"object": "error", "message": "this model's limit is 50"})
        if how == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        tokens = [ord(c) for c in prompt] if isinstance(prompt, str) else prompt
        keys = ident.keys(tokens, salt=body.get("cache_salt"))
        with arena.match(keys) as hit:
            n = len(hit)
            if n < len(keys):
                with arena.allocate(len(keys) - n, keys=keys[n:]) as fill:
                    fill.register().release()
        self.answer(200, {"choices": [{"text": "x"}], "usage": {
            "prompt_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": 16 * n}}})

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
say(server.server_port)
hear()
"""


def tokens_of(seed: int, blocks: int) -> list[int]:
    return list(range(10_000 * seed, 10_000 * seed + 16 * blocks))


@pytest.fixture
def arena(make_arena: Callable[..., Any], tmp_path: Path) -> Any:
    made = make_arena(32, 4096, identity=IDENT, helper=False, tier=tmp_path / "tier",
                      tier_size="2MiB", tier_options={"engine": "threads"})
    assert eventually(lambda: made.tier.state == kvshm.TierState.OK)
    return made


@pytest.fixture
def engine(arena: Any, worker: Any) -> Iterator[str]:
    one = worker(SERVER, arena.name, json.dumps(FIELDS))
    yield f"http://127.0.0.1:{one.hear(60)}"
    one.close()


def asked(engine: str) -> list[dict[str, Any]]:
    from urllib.request import ProxyHandler, build_opener

    with build_opener(ProxyHandler({})).open(engine + "/asked", timeout=30) as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found


def prompts(path: Path, *lists: Any) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in lists) + "\n")
    return path


def document(done: Outcome, code: int) -> dict[str, Any]:
    assert done.code == code, done
    jsonschema.validate(done.json, SCHEMA)
    found: dict[str, Any] = done.json
    return found


def test_what_is_missing_is_computed(arena: Any, engine: str, tmp_path: Path) -> None:
    """One prompt half on disk, one unknown: both are whole in memory afterwards."""
    one, two = tokens_of(1, 6), tokens_of(2, 3)
    keys = IDENT.keys(one)[:4]
    store(arena, keys).release()
    assert arena.tier_drain(10)
    assert arena.evict(keys) == 4
    file = prompts(tmp_path / "p", one, two)
    found = document(kvshm_cli("warmup", arena.name, "--tokens", file, "--engine", f"{engine}/ok/",
                               "--json"), 0)
    first, second = found["prompts"]
    assert (first["found"], first["lifted"], first["missing"], first["stored"]) == (0, 4, 2, 2)
    assert (second["found"], second["lifted"], second["missing"], second["stored"]) == (0, 0, 3, 3)
    assert first["engine"]["prompt_tokens"] == 96 and first["engine"]["cached_tokens"] == 64
    assert found["engine"] == {"url": f"{engine}/ok/", "model": "the-model", "answered": 2,
                               "failed": 0, "not_sent": 0}
    for tokens in (one, two):
        assert (arena.presence(IDENT.keys(tokens)) & kvshm.Presence.G2 != 0).all()
    sent = asked(engine)
    assert [body["prompt"] for body in sent] == [one, two], "each of them once"
    assert all(body["max_tokens"] == 1 and body["model"] == "the-model" for body in sent)
    text = kvshm_cli("warmup", arena.name, "--tokens", file, "--engine", f"{engine}/ok/v1",
                     "--model", "mine")
    assert text.code == 0 and "engine: mine: 2 answers" in text.out
    assert asked(engine)[-1]["model"] == "mine"


def test_text_without_a_tokenizer(arena: Any, engine: str, tmp_path: Path) -> None:
    """Its blocks cannot be named here; the engine computes them all the same."""
    file = prompts(tmp_path / "p", {"prompt": "x" * 40, "cache_salt": "t"})
    found = document(kvshm_cli("warmup", arena.name, "--prompts", file, "--engine",
                               f"{engine}/ok", "--json"), 0)
    (one,) = found["prompts"]
    assert one["blocks"] is one["stored"] is None and one["engine"]["prompt_tokens"] == 40
    assert (arena.presence(IDENT.keys([ord("x")] * 40, salt="t")) & kvshm.Presence.G2 != 0).all()


def test_an_arena_without_a_tier(make_arena: Any, worker: Any, tmp_path: Path) -> None:
    arena = make_arena(32, 4096, identity=IDENT, helper=False)
    one = worker(SERVER, arena.name, json.dumps(FIELDS))
    found = document(kvshm_cli("warmup", arena.name, "--tokens",
                               prompts(tmp_path / "p", tokens_of(1, 3)), "--engine",
                               f"http://127.0.0.1:{one.hear(60)}/ok", "--json"), 0)
    assert found["files"] is None and found["prompts"][0]["stored"] == 3


def test_a_prompt_that_it_refuses(arena: Any, engine: str, tmp_path: Path) -> None:
    """The others are sent; exit 1, and the engine's own words."""
    file = prompts(tmp_path / "p", tokens_of(1, 2), tokens_of(2, 4), tokens_of(3, 3))
    found = document(kvshm_cli("warmup", arena.name, "--tokens", file, "--engine",
                               f"{engine}/short", "--json"), 1)
    assert [one["error"] for one in found["prompts"]] == [
        None, "HTTP 400: this model's limit is 50", None]
    assert (found["engine"]["answered"], found["engine"]["failed"]) == (2, 1)


def test_it_is_left_alone_after_three_failures(arena: Any, engine: str, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p", *(tokens_of(seed, 1) for seed in range(1, 7)))
    done = kvshm_cli("warmup", arena.name, "--tokens", file, "--engine", f"{engine}/busy")
    assert done.code == 1 and "3 failures, the first at prompt 1: HTTP 503: try later" in done.out
    assert "3 prompts not sent" in done.out and len(asked(engine)) == 3


@pytest.mark.parametrize(("how", "code", "says"), [
    ("nothing", 2, "names no model"), ("locked", 6, "HTTP 401: who are you?"),
    ("page", 6, "no JSON"), ("silent", 6, "no answer in")])
def test_an_engine_that_names_no_model(arena: Any, engine: str, tmp_path: Path, how: str,
                                       code: int, says: str) -> None:
    begun = time.monotonic()
    done = kvshm_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", [1] * 16),
                     "--engine", f"{engine}/{how}", "--timeout", "2" if how == "silent" else "60")
    assert done.code == code and says in done.err and done.err.count("\n") == 1
    assert time.monotonic() - begun < 25 and not done.out


def test_a_key(arena: Any, engine: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    done = kvshm_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", tokens_of(1, 1)),
                     "--engine", f"{engine}/locked", "--engine-key", tmp_path / "key")
    assert done.code == 0, done


def test_an_answer_that_trickles(arena: Any, engine: str, tmp_path: Path) -> None:
    """A byte now and then is no whole answer: the limit is of all of it."""
    begun = time.monotonic()
    done = kvshm_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", tokens_of(1, 1)),
                     "--engine", f"{engine}/drip", "--timeout", "3", "--json")
    assert time.monotonic() - begun < 15, "it would take 20 s"
    assert done.code in (1, 6) and "answer in" in done.json["prompts"][0]["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_it_is_ended_in_the_midst(arena: Any, engine: str, tmp_path: Path, number: int,
                                  code: int) -> None:
    """While it holds what it lifted, and an answer trickles: nothing of it stays held."""
    keys = IDENT.keys(tokens_of(1, 4))
    store(arena, keys).release()
    assert arena.tier_drain(10)
    arena.evict(keys)
    process = spawn_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", tokens_of(1, 4)),
                        "--engine", f"{engine}/drip")
    assert eventually(lambda: bool(asked(engine)), 60)
    assert arena.stats().blocks_held == 4
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code and "Traceback" not in err
    arena.reap()
    assert arena.stats().blocks_held == 0
    assert (arena.presence(keys) & kvshm.Presence.G2 != 0).all(), "what it lifted stays"


def test_nobody_listens(arena: Any, tmp_path: Path) -> None:
    done = kvshm_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", [1] * 16),
                     "--engine", "http://127.0.0.1:1")
    assert done.code == 6 and "Connection refused" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://h:port",
                                 "http://h/?x=1"])
def test_no_url(arena: Any, tmp_path: Path, url: str) -> None:
    done = kvshm_cli("warmup", arena.name, "--tokens", prompts(tmp_path / "p", [1] * 16),
                     "--engine", url)
    assert done.code == 2 and "no such URL" in done.err and done.err.count("\n") == 1


def test_keys_cannot_be_sent(arena: Any, tmp_path: Path) -> None:
    (tmp_path / "k").write_text("ab" * 16)
    done = kvshm_cli("warmup", arena.name, "--keys", tmp_path / "k", "--engine", "http://h")
    assert done.code == 2 and "prompts, not keys" in done.err


def test_a_bar_on_a_terminal(arena: Any, engine: str, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvshm.tools.cli", "warmup", arena.name, "--tokens",
         str(prompts(tmp_path / "p", tokens_of(1, 3))), "--engine", f"{engine}/ok", "--json"],
        stdout=subprocess.PIPE, stderr=slave, text=True, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    out, _ = process.communicate(timeout=60)
    shown = read_terminal(master)
    assert process.returncode == 0 and b"warming up" in shown
    assert json.loads(out)["prompts"][0]["stored"] == 3
