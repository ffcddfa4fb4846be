# SPDX-License-Identifier: Apache-2.0
"""Where a trace lies: the path as given, else a name in the folders of KVSHM_TRACES."""
from __future__ import annotations

import os
from pathlib import Path

from .failures import ReplayError

ENDINGS = ("", ".jsonl", ".jsonl.zst", ".jsonl.gz")


def find(given: str) -> str:
    """A path that can be read; `-` stays."""
    if given == "-" or os.path.exists(given):
        return given
    folders = [Path(folder) for folder in os.environ.get("KVSHM_TRACES", "").split(os.pathsep)
               if folder]
    if os.path.basename(given) == given:
        for folder in folders:
            for ending in ENDINGS:
                if (folder / (given + ending)).is_file():
                    return str(folder / (given + ending))
    looked = ", ".join(map(str, folders)) or "KVSHM_TRACES is not set"
    raise ReplayError(f"{given}: no such file, nor a trace of that name ({looked})",
                      "give a path, or set KVSHM_TRACES to the folder of your traces")
