# SPDX-License-Identifier: Apache-2.0
"""The demo itself, with the tiny model: what it promises in each mode, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import kvshm  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(320)]

PROMPTS = """\
== system
{system}
== conversation: one
user: Where does the harbour train stop?
user: And on the way back?
== conversation: two
user: May I bring my dog?
user: What does that cost?
== conversation: three
user: I lost my hat.
user: It is green.
"""


def demo(*args: str, limit: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvshm.tools.engine.demo", "--tiny", *args],
        capture_output=True, text=True, timeout=limit, check=False,
    )


@pytest.fixture(scope="module")
def short_prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "short.txt"
    system = "\n".join(f"Rule {i}: the train on track {i * 7 % 5} waits." for i in range(25))
    path.write_text(PROMPTS.format(system=system))
    return str(path)


def failed(document: dict) -> dict:
    return {name: check for name, check in document["checks"].items() if not check["holds"]}


def arenas() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("kvshm.demo-*")}


@pytest.mark.slow
def test_in_place_on_the_shipped_prompts():
    """The main job, small: everything that the whole demo shows."""
    before = arenas()
    ran = demo("--json")
    document = json.loads(ran.stdout)
    assert not failed(document)
    assert ran.returncode == 0
    assert document["reused_from_others"] >= 0.9
    assert document["bytes_copied_between_processes"] == 0
    assert document["ttft_warm_ms"] < document["ttft_cold_ms"]
    assert document["tokens_equal"] is True
    assert document["logits_max_diff"] <= 1e-4
    assert document["survived_kill"] is True
    assert document["warm_after_restart"] is True
    assert {row["worker"] for row in document["workers"]} == {"worker-0", "worker-1", "worker-2"}
    for row in document["workers"]:
        parts = row["from_self"] + row["from_others"] + row["computed"]
        assert parts == row["prompt_tokens"]
    assert "round 1" in ran.stderr  # progress is told, and not on stdout
    assert not arenas() - before


def test_copy_mode_counts_every_byte(short_prompts):
    ran = demo("--json", "--kv", "copy", "--prompts", short_prompts)
    document = json.loads(ran.stdout)
    assert not failed(document)
    assert ran.returncode == 0
    copied = document["bytes_copied_between_processes"]
    assert copied > 0
    assert copied % document["arena"]["block_bytes"] == 0
    # The arena's own count is checked against what the workers say that they copied.
    assert document["checks"]["bytes_copied"]["wanted"].startswith(f"{copied},")


@pytest.mark.slow
def test_an_arena_that_is_too_small_costs_reuse_and_nothing_else(short_prompts):
    ran = demo("--json", "--blocks", "24", "--prompts", short_prompts)
    document = json.loads(ran.stdout)
    assert document["arena"]["evicted"] > 0
    for name in ("tokens_equal", "logits_bitwise", "logits_max_diff", "survivors_answered",
                 "arena_valid", "blocks_back_ms", "bytes_copied"):
        assert document["checks"][name]["holds"], document["checks"][name]
    # What does not hold is said, by name and by the exit status.
    assert ran.returncode == (1 if failed(document) else 0)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["in-place", "copy"])
def test_with_a_disk_below_an_arena_that_is_too_small(short_prompts, tmp_path, kv):
    path = tmp_path / "demo.tier"
    ran = demo("--json", "--blocks", "170", "--tier", str(path), "--layer-groups", "2",
               "--prefetch", "--kv", kv, "--prompts", short_prompts)
    document = json.loads(ran.stdout)
    assert document["arena"]["evicted"] > 0 and document["arena"]["loaded"] > 0
    for name in ("tokens_equal", "logits_bitwise", "logits_max_diff", "survivors_answered",
                 "arena_valid", "blocks_back_ms", "bytes_copied"):
        assert document["checks"][name]["holds"], document["checks"][name]
    assert ran.returncode == (1 if failed(document) else 0)
    assert not path.exists()


@pytest.mark.slow
def test_three_workers_and_a_table(short_prompts):
    ran = demo("--workers", "3", "--prompts", short_prompts)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "worker-3" in ran.stdout  # the fresh one
    assert "bytes copied between processes: 0" in ran.stdout
    assert "FAILED" not in ran.stdout


@pytest.mark.slow
def test_keep_leaves_the_arena_and_says_how_to_look(short_prompts):
    ran = demo("--json", "--keep", "--prompts", short_prompts)
    name = json.loads(ran.stdout)["arena"]["name"]
    try:
        assert f"kvshm stat {name}" in ran.stderr
        with kvshm.Arena.attach(name) as arena:
            assert arena.stats()["registered_total"] > 0
            assert not arena.is_valid()
    finally:
        kvshm.remove(name)


@pytest.mark.slow
def test_without_sharing_nothing_is_reused(short_prompts):
    ran = demo("--json", "--kv", "off", "--prompts", short_prompts)
    document = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert document["bytes_copied_between_processes"] is None
    assert all(row["computed"] == row["prompt_tokens"] for row in document["workers"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--workers", "1"], "--workers must be at least 2"),
        (["--prompts", "nowhere.txt"], "cannot read prompts file nowhere.txt: No such file"),
        (["--blocks", "4", "--size", "1MiB"], "not allowed with argument"),
        (["--kv", "magic"], "invalid choice: 'magic'"),
        (["--prefetch"], "--prefetch needs a --tier"),
        (["--tier", __file__], "is there already"),
        (["--tier", "new", "--kv", "off"], "--tier is not for --kv off"),
        (["--layer-groups", "3"], "2 layers are not 3 groups"),
        (["--engine", "vllm", "--tier", "new"], "--tier is not for --engine vllm"),
    ],
)
def test_a_wrong_call_is_explained(args, message):
    ran = demo(*args)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize("args", [["--size", "4KiB"], ["--dir", "/nowhere"]])
def test_an_arena_that_cannot_be_made_is_explained(args):
    ran = demo(*args)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") < 6  # a message, not a trace
    assert "tools/demo: no arena of" in ran.stderr


def test_a_worker_that_cannot_start_is_named(short_prompts):
    """A seed that torch refuses, as an example of what can go wrong in a worker only."""
    before = arenas()
    ran = demo("--seed", str(2**70), "--prompts", short_prompts)
    assert ran.returncode == 1
    assert "tools/demo: worker-0" in ran.stderr
    assert not arenas() - before
