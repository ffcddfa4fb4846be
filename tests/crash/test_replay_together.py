# SPDX-License-Identifier: Apache-2.0
"""Several real processes replay one trace together, and some are killed in the midst of it."""
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from kvshm.tools.replay.crew import replay_together
from kvshm.tools.replay.drive import replay
from kvshm.tools.replay.failures import ReplayError
from kvshm.tools.replay.synthetic import synthetic
from support import shm_dir
from support.arenas import eventually
from support.cli import kvshm_cli, spawn_cli
from support.traces import recorded


def leavings(pid: int = 0) -> list[str]:
    return [p.name for p in shm_dir.glob(f"kvshm.replay-{pid or os.getpid()}-*")]


def children(pid: int) -> list[int]:
    return [int(n) for task in Path(f"/proc/{pid}/task").iterdir()
            for n in (task / "children").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("processes", [2, 4])
def test_together_they_hit_what_one_hits(processes: int) -> None:
    trace = synthetic("chat", 4, 2000)
    blocks = trace.blocks_of(0.1)
    alone = replay(trace, "lru", blocks).ratios(trace).block
    found = replay_together(trace, "lru", blocks, processes)
    assert found.broken == () and found.kills == 0 and not leavings()
    assert found.ratios(trace).block == pytest.approx(alone, abs=0.01)
    # all of them, and each but once: those that were found are in the counters, too
    assert (found.hits <= trace.lengths).all() and (found.hits >= 0).all()
    assert found.counted["hits_total"] >= found.hits.sum()


@pytest.mark.crash
def test_kills_cost_hits_never_correctness() -> None:
    trace = synthetic("api", 4, 4000)
    blocks = trace.blocks_of(0.1)
    alone = replay(trace, "lru", blocks).ratios(trace).block
    found = replay_together(trace, "lru", blocks, 3, kills=4, seed=1)
    assert found.kills == 4 and found.counted["reaped_slots_total"] >= 4
    assert found.broken == () and not leavings()
    assert found.ratios(trace).block == pytest.approx(alone, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("processes, kills", [(2, 0), (4, 0), (4, 3)])
def test_recorded(processes: int, kills: int) -> None:
    trace = recorded("mooncake_conversation")
    alone = replay(trace, "lru", 9139).ratios(trace).block
    found = replay_together(trace, "lru", 9139, processes, kills)
    assert found.ratios(trace).block > alone - 0.01 and found.broken == ()


def test_a_worker_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvshm.tools.replay.crew.sys.executable", "/bin/false")
    with pytest.raises(ReplayError, match="worker 0 ended with 1: no word"):
        replay_together(synthetic("chat", 1, 50), "lru", 100, 2)
    assert not leavings()


def test_the_command() -> None:
    found = kvshm_cli("replay", "--synthetic", "chat", "--requests", 600, "--policy", "lru",
                      "--processes", 2, "--json", "--no-reference")
    assert found.code == 0, found.err
    assert found.json["processes"] == 2 and found.json["block_hit_ratio"] > 0.1
    many = kvshm_cli("replay", "--synthetic", "chat", "--requests", 600, "--processes", 41)
    assert many.code == 2 and "--processes 41: wanted 1 to 40" in many.err


def test_nobody_is_left_waiting_when_there_is_little_to_do() -> None:
    trace = synthetic("chat", 1, 3)
    found = replay_together(trace, "lru", 500, 5)
    assert np.array_equal(found.hits, replay(trace, "lru", 500).hits)


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_workers_end_with_the_command(number: int) -> None:
    one = spawn_cli("replay", "--synthetic", "chat", "--requests", 30_000, "--policy", "lru",
                    "--processes", 3, "--no-reference")
    assert eventually(lambda: bool(leavings(one.pid)) and len(children(one.pid)) == 3, 60)
    crew = children(one.pid)
    one.send_signal(number)
    one.communicate(timeout=30)
    # Without their parent they finish their share, or notice that it has gone.
    assert eventually(lambda: not any(map(lives, crew)), 60)
    if number == signal.SIGKILL:
        assert kvshm_cli("replay", "--synthetic", "api", "--requests", 20, "-q").code == 0
    assert not leavings(one.pid)
