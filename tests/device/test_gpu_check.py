# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check, as far as it goes without a GPU: on a driver that has none."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvshm import paths

CHECK = Path(__file__).resolve().parents[2] / "tools" / "gpu_check"


def check(*args, **env):
    library = next(Path(paths.include_dir()).parent.glob("lib*/libkvshm.so.0"))
    done = subprocess.run([sys.executable, CHECK, "--lib", library, *args], capture_output=True,
                          text=True, timeout=110, env={**os.environ, **env})
    return done.returncode, json.loads(done.stdout), done.stderr


def test_without_a_gpu_it_says_what_it_wants():
    code, found, _ = check("--quick", "--kills", "0")
    if code != 3:
        pytest.skip("this host has a GPU")
    assert found["verdict"] == "no GPU" and "NVIDIA" in found["wanted"] and found["why"]


def fake(path, **more):
    return {"LD_LIBRARY_PATH": str(path.parent), **more}


def test_driver_without_a_device(fake_cuda_path):
    code, found, _ = check("--quick", **fake(fake_cuda_path, KVSHM_FAKE_CUDA_DEVICES="0"))
    assert (code, found["verdict"]) == (3, "no GPU") and "no CUDA-capable device" in found["why"]


@pytest.mark.crash
def test_all_of_it_on_a_fake(fake_cuda_path):
    code, found, said = check("--quick", "--kills", "1", **fake(fake_cuda_path))
    assert code == 0, (found, said)
    assert found["gpu"] == "fake" and found["verdict"] == "right"
    assert [r["pieces"] for r in found["registration"]] == [4, 1]
    (beside,), (two,) = found["beside_others"], found["two_processes"]
    assert beside["all_foreign"] and beside["all_but_one_block"]
    assert two["all"] and two["right"] and two["ended"] and two["foreign"] == two["broken"] == 0
    assert {r["order"]: r["runs"] for r in found["paged"]} == {
        "LBHNC": 4, "LBNHC": 4, "LHBNC": 8, "BLHNC": 1, "BLNHC": 1, "BHLNC": 1,
        "SLBNHC": 8, "LBNC": 4, "SLHBNC": 16}
    for layout in found["paged"]:
        assert layout["right"] and layout["broken"] == 0
        assert min(layout[f"{what}_gb_per_s"] for what in ("store", "load", "again", "plain")) > 0
    assert found["nvrtc"] == "libnvrtc.so.13" and "left_out" not in found
    assert [(r["wanted"], r["path"], r["right"], r["why"]) for r in found["gds"]] == [
        ("auto", "direct", True, ""), ("off", "host", True, "")]
    assert found["gds"][0]["loads"] == {"memory": 0, "host": 0, "direct": 16}
    (kill,) = found["kills"]
    assert kill["cleared_ms"] >= 2000 and kill["written_after_clear"] == 0


def test_wrong_copies_are_seen(fake_cuda_path):
    code, found, _ = check("--quick", "--kills", "0",
                           **fake(fake_cuda_path, KVSHM_FAKE_CUDA_WRONG="1"))
    assert (code, found["verdict"]) == (1, "wrong")


def test_wrong_paged_copies_are_seen(fake_cuda_path):
    code, found, _ = check("--quick", "--kills", "0",
                           **fake(fake_cuda_path, KVSHM_FAKE_CUDA_WRONG_PAGED="1"))
    assert (code, found["verdict"]) == (1, "wrong")
    assert all(r["right"] for r in found["registration"])
    assert not any(r["right"] for r in found["paged"])


@pytest.mark.crash
def test_writes_beyond_the_drain_time_are_seen(fake_cuda_path):
    code, found, _ = check("--quick", "--kills", "1",
                           **fake(fake_cuda_path, KVSHM_FAKE_CUDA_LATE_MS="8000"))
    assert (code, found["verdict"]) == (1, "wrong")
    assert found["kills"][0]["written_after_clear"] > 0


def test_what_time_does_not_allow_is_named(fake_cuda_path):
    code, found, _ = check("--quick", "--limit", "0", **fake(fake_cuda_path))
    assert code == 0 and found["verdict"] == "right, as far as it came"
    assert found["left_out"] == {"registration": 2, "beside_others": 1, "two_processes": 1,
                                 "paged": 9, "kills": 3, "gds": 2}


@pytest.mark.crash
def test_partial_results_outlive_it(fake_cuda_path, tmp_path):
    out = tmp_path / "found.json"
    library = next(Path(paths.include_dir()).parent.glob("lib*/libkvshm.so.0"))
    running = subprocess.Popen(
        [sys.executable, CHECK, "--lib", library, "--quick", "--out", out],
        stdout=subprocess.DEVNULL, env={**os.environ, **fake(fake_cuda_path)})
    try:
        end = time.monotonic() + 60
        while not (out.exists() and json.loads(out.read_text()).get("two_processes")):
            assert time.monotonic() < end and running.poll() is None
            time.sleep(0.01)
        running.kill()
        running.wait(10)
        found = json.loads(out.read_text())
        assert found["registration"][0]["right"] and "verdict" not in found
    finally:
        running.kill()
        running.wait(10)
        for left in Path("/dev/shm").glob(f"kvshm.gpu-check-{running.pid}-*"):
            left.unlink()


def test_a_direct_path_that_is_none_is_told(fake_cuda_path):
    code, found, said = check("--quick", "--kills", "0",
                              **fake(fake_cuda_path, KVSHM_FAKE_CUFILE="compat"))
    assert code == 0, (found, said)
    assert [r["path"] for r in found["gds"]] == ["host", "host"]
    assert "compatibility mode" in found["gds"][0]["why"]


def test_wrong_direct_loads_are_not_taken(fake_cuda_path):
    """They are noticed, and done again by the host: the check is right, and says so."""
    code, found, _ = check("--quick", "--kills", "0",
                           **fake(fake_cuda_path, KVSHM_FAKE_CUFILE="wrong=3"))
    assert code == 0
    assert found["gds"][0]["path"] == "host" and found["gds"][0]["loads"]["direct"] == 2
