# SPDX-License-Identifier: Apache-2.0
"""tools/demo --engine vllm, with the tiny model: two real engines, a kill, a restart."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "kvshm.tools.engine.demo", "--engine", "vllm"]
PROMPTS = """\
== system
{system}
== conversation: one
user: Where does the harbour train stop?
user: And on the way back?
== conversation: two
user: May I bring my dog?
user: What does that cost?
"""


def test_two_engines_share_and_one_is_killed(vllm_python, tmp_path):
    system = "\n".join(f"Rule {i}: the train on track {i * 7 % 5} waits." for i in range(60))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(PROMPTS.format(system=system))
    ran = subprocess.run([*DEMO, "--tiny", "--json", "--prompts", str(prompts)],
                         capture_output=True, text=True, timeout=400)
    assert ran.stdout, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    # Their time to the first token is a few milliseconds: how many, another test tells.
    failed = [name for name, check in found["checks"].items()
              if not check["holds"] and not name.startswith("ttft")]
    assert not failed, found["checks"]
    assert found["kv"] == "vllm" and found["reused_from_others"] >= 0.9
    assert found["tokens_equal"] and found["survived_kill"] and found["warm_after_restart"]
    assert found["logits_max_diff"] is None  # it tells none
    assert found["bytes_copied_between_processes"] > 0
    assert [row["worker"] for row in found["workers"]] == ["worker-0", "worker-1", "worker-2"]
    assert not list(Path("/dev/shm").glob(f"kvshm.{found['arena']['name']}*"))


@pytest.mark.parametrize(("args", "message"), [
    (["--kv", "copy"], "--kv is not for --engine vllm"),
    (["--blocks", "9"], "--blocks is not for --engine vllm"),
    (["--tp", "0"], "--tp must be at least 1"),
])
def test_a_wrong_call_is_explained(args, message):
    ran = subprocess.run([*DEMO, *args], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 2 and message in ran.stderr and not ran.stdout


def test_the_built_in_engine_takes_no_model():
    ran = subprocess.run([*DEMO[:-2], "--model", "."], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 2 and "--model is not for --engine built-in" in ran.stderr


def test_an_environment_that_is_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KVSHM_VLLM_ENV", str(tmp_path))
    ran = subprocess.run(DEMO, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1 and f"KVSHM_VLLM_ENV={tmp_path}: no environment" in ran.stderr
