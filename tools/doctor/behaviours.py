# SPDX-License-Identifier: Apache-2.0
"""Has the kernel behaviours played in a process of its own, and says what each failure means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from .probe import Options, Probe

LIMIT = 30.0
PLAY = "import sys; from kvshm.tools.doctor.scene import main; main(*sys.argv[1:])"

LOCK_COSTS = "a dead process could pass for a live one, or a live one for dead: wrong bytes"
LOCK_FIX = "do not use kvshm on this kernel; please report it with the output of uname -a"
RING_COSTS = "after a kill a transfer could land in a block that somebody else holds"
RING_FIX = "use the engine of blocking threads, whose transfers end before the process does"


def behaviours(options: Options) -> list[Probe]:
    # A session of its own, so that whatever a scene leaves can be ended as a group. One thread:
    # a numerical library's pool would make forking there a gamble.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PLAY, str(options.arenas), str(options.tier)]
    stage = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True)
    try:
        out, errors = stage.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return [Probe("kernel behaviours", "fail", f"no answer in {LIMIT:g} s", LOCK_COSTS,
                      LOCK_FIX)]
    finally:
        _end_group(stage)
    if stage.returncode:
        last = errors.strip().splitlines()[-1:] or [f"ended with {stage.returncode}"]
        return [Probe("kernel behaviours", "skip", last[0])]
    return [_explained(name, status, found) for name, status, found in json.loads(out)]


def _explained(name: str, status: str, found: str) -> Probe:
    if status == "fail":
        ring = name.startswith("device")
        return Probe(name, "fail", found, RING_COSTS if ring else LOCK_COSTS,
                     RING_FIX if ring else LOCK_FIX)
    return Probe(name, "ok" if status == "ok" else "skip", found)


def _end_group(stage: subprocess.Popen[str]) -> None:
    try:
        os.killpg(stage.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    stage.wait(LIMIT)
    for pipe in (stage.stdout, stage.stderr):
        if pipe:
            pipe.close()
