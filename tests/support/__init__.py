# SPDX-License-Identifier: Apache-2.0
"""What several test folders use. On the path of every test as the package ``support``."""
from support.names import PREFIX, remove_leftovers, remove_stale, shm_dir
from support.worker import Worker, WorkerError

__all__ = ["PREFIX", "Worker", "WorkerError", "remove_leftovers", "remove_stale", "shm_dir"]
