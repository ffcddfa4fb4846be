# SPDX-License-Identifier: Apache-2.0
"""A connector that stands still in the middle of a copy, for its process to be killed there.

It reads what to do from a folder (Halts, below, is the tests' side of it). This module is imported
by vLLM's processes as well as by the tests.
"""
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

FOLDER = "TEST_HALT_FOLDER"  # in the environment of the engine
LIMIT = 120.0  # seconds; nobody came to kill it


class Halts:
    """Orders to the engines that were started with `env`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.env = {FOLDER: str(folder)}

    def order(self, what: str, after: int, part: int = 0) -> None:
        """The next "save" or "load" of more than `after` blocks by that rank stands still when so
        many have been copied and half of the next."""
        (self._folder / f"{what}-{part}").write_text(str(after))

    def wait(self, limit: float = 60.0) -> int:
        """The pid of who stands still now."""
        path = self._folder / "halted"
        end = time.monotonic() + limit
        while not path.exists():
            assert time.monotonic() < end, f"nothing stood still within {limit:g} s"
            time.sleep(0.01)
        pid = int(path.read_text())
        path.unlink()
        return pid


def _ordered(what: str, part: int, blocks: int) -> int | None:
    path = Path(os.environ[FOLDER], f"{what}-{part}")
    if not path.exists() or int(path.read_text()) >= blocks:
        return None
    after = int(path.read_text())
    path.unlink()
    return after


def _halt() -> None:
    folder = Path(os.environ[FOLDER])
    (folder / "part").write_text(str(os.getpid()))
    (folder / "part").rename(folder / "halted")
    time.sleep(LIMIT)
    os._exit(1)


def __getattr__(name: str) -> Any:
    """HaltingConnector; made where it is asked for, as the tests have no vLLM."""
    if name != "HaltingConnector":
        raise AttributeError(name)
    import numpy as np
    from kvshm.connectors.vllm.connector import KvshmConnector
    from kvshm.connectors.vllm.metadata import Piece, SaveJob
    from kvshm.connectors.vllm.transfers import HostTransfers

    class HaltingTransfers(HostTransfers):
        def _load(self, pages: Any, handles: Any, rows: Any) -> Any:
            after = _ordered("load", self._part, len(rows))
            if after is None:
                return super()._load(pages, handles, rows)
            lease = self._arena.pin(handles)
            assert lease is not None
            pages.load(lease, rows[:after], part=self._part)
            return _halt()

        def _save(self, pages: Any, job: Any) -> Any:
            handles, rows = job.piece.handles, job.piece.rows
            after = _ordered("save", self._part, len(rows))
            if after is None:
                return super()._save(pages, job)
            super()._save(pages, SaveJob(
                job.job, job.request, Piece(job.piece.group, handles[:after], rows[:after])))
            fill = self._arena.join(handles[after:])
            fill.begin(0, self._part)
            begin = self._part * pages.slice_bytes
            half = np.asarray(fill.view(0))[begin:begin + pages.slice_bytes // 2]
            half[:] = 0xA5  # whoever finds this has been given a hole
            return _halt()

    class HaltingConnector(KvshmConnector):
        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            # The name by which the worker's side makes its transfers.
            from kvshm.connectors.vllm import worker

            worker.HostTransfers = HaltingTransfers

    globals()[name] = HaltingConnector
    return HaltingConnector


def halting_connector(extra: dict[str, Any]) -> dict[str, Any]:
    """kv_transfer_config."""
    from kvshm.tools.vllm.options import kvshm_connector

    return {**kvshm_connector(extra), "kv_connector": "HaltingConnector",
            "kv_connector_module_path": "halting"}
