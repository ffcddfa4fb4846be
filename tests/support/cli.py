# SPDX-License-Identifier: Apache-2.0
"""Runs the command `kvshm`, and makes copies of an arena that can be broken on purpose."""
import contextlib
import fcntl
import io
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def kvshm_cli(*argv: object) -> Outcome:
    """The command within this process, which is attached to nothing."""
    from kvshm.tools.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as e:  # --help and the like
            code = e.code if isinstance(e.code, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def spawn_cli(*argv: object, **options: Any) -> "subprocess.Popen[str]":
    """The command as a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "kvshm.tools.cli", *map(str, argv)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


class Copy:
    """An arena's bytes in a plain file, all sections writable: `hot`, `cold`, `index`, ...

    The copy is found as `kvshm ... --dir FOLDER NAME`. Nobody lives in it, unless `live` is used.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        from kvshm.tools.inspector import dtypes, layout, objects

        self.path = folder / source.name
        self.name, self.dir = source.name.removeprefix("kvshm."), folder
        shutil.copyfile(source, self.path)
        fd = os.open(self.path, os.O_RDONLY)
        geometry = objects.judge(fd).geometry
        os.close(fd)
        assert geometry is not None
        self.geometry = g = geometry
        self.bytes = np.memmap(self.path, np.uint8, "r+")

        def section(offset: int, dtype: Any, count: int) -> Any:
            size = np.dtype(dtype).itemsize * count
            return np.asarray(self.bytes[offset:offset + size]).view(dtype)

        self.superblock = section(0, dtypes.SUPERBLOCK, 1)
        self.slots = section(g.slots_off, dtypes.SLOT, layout.SLOTS)
        self.regions = section(g.regions_off, "<u8", layout.SLOTS * g.region_words).reshape(
            layout.SLOTS, -1)
        self.hot = section(g.hot_off, dtypes.HOT, g.blocks)
        self.cold = section(g.cold_off, dtypes.COLD, g.blocks)
        self.index = section(g.index_off, "<u8", g.buckets * layout.WAYS)
        self.free_map = section(g.free_off, "<u8", (g.blocks + 63) // 64)
        self.summary = section(g.summary_off, "<u8", g.region_words)
        self.mover = section(g.queues_off, dtypes.MOVER, 1)
        self.lanes = section(g.queues_off + layout.MOVER, dtypes.LANE, layout.LANES)
        self.ghosts = section(g.ghost_off, dtypes.GHOST, layout.ghost_places(g.blocks))

    def cli(self, verb: str, *argv: object) -> Outcome:
        return kvshm_cli(verb, "--dir", self.dir, *argv, self.name)

    @contextlib.contextmanager
    def lock(self, byte: int, write: bool = True) -> Iterator[None]:
        """Holds a lock byte of the copy, as a process or a ring of its would."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            kind = fcntl.F_WRLCK if write else fcntl.F_RDLCK
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, byte, 1, 0))
            yield
        finally:
            os.close(fd)

    def live(self, slot: int) -> contextlib.AbstractContextManager[None]:
        return self.lock((1 << 62) + slot)


def read_terminal(master: int) -> bytes:
    """All that was written to the other end, which is closed by now, and this end is then, too."""
    out = b""
    try:
        while chunk := os.read(master, 65536):
            out += chunk
    except OSError:  # a terminal's end
        pass
    os.close(master)
    return out
