# SPDX-License-Identifier: Apache-2.0
"""Two data-parallel replicas of one vLLM: engine cores with schedulers of their own, one arena."""
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import kvshm
from kvshm.tools.vllm.group import kill_group
from kvshm.tools.vllm.options import Options, kvshm_connector
from kvshm.tools.vllm.overlay import overlay
from support import PREFIX

from .watching import prompt

HERE = Path(__file__).resolve().parent
NAME = f"{PREFIX}dp"
LIMIT = 300  # seconds


def test_what_one_replica_computed_the_other_loads(vllm_python, model, tmp_path):
    options = Options(model("tiny-llama"), multiprocessing=True, threads="0|1",
                      connector=kvshm_connector({"name": NAME, "size": "64MiB", "label": "-"}),
                      args={"data_parallel_size": 2})
    first, second = prompt(1), prompt(2)
    requests = [(0, first, 16), (1, first, 16), (1, second, 16), (0, second, 16), (0, first, 16),
                (1, second, 16)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    out = tmp_path / "answers"
    path = overlay(vllm_python, tmp_path / "python")
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [str(vllm_python), str(HERE / "replicas.py"),
             json.dumps({"args": options.engine_args(), "requests": requests})],
            env={**env, **options.engine_env(), "PYTHONPATH": str(path), "OUT": str(out)},
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True)
        try:
            process.wait(LIMIT)
        finally:
            kill_group(process.pid)
            process.wait()
            if (Path("/dev/shm") / f"kvshm.{NAME}").exists():
                kvshm.remove(NAME, force=True)
    assert out.exists(), (tmp_path / "log").read_text()[-4000:]
    answers = json.loads(out.read_text())
    # The last two are in the ranks' own caches: what is loaded is held against them, as the last
    # bits of a prefill go by how it is split.
    assert [one["cached"] for one in answers] == [0, 992, 0, 992, 992, 992]
    assert answers[1]["tokens"] == answers[4]["tokens"]
    assert answers[3]["tokens"] == answers[5]["tokens"] != answers[1]["tokens"]
