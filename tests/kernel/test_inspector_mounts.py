# SPDX-License-Identifier: Apache-2.0
"""The inspector on every kind of mount that an arena may lie on: page sizes differ."""
import kvshm
import numpy as np
from support.cli import kvshm_cli

from .mounts import Mount


def test_arena_seen_on(mount: Mount, arena_name: str) -> None:
    keys = np.random.default_rng(2).integers(1, 256, (4, 16), np.uint8)
    where = ("--dir", str(mount.folder))
    with kvshm.Arena.create(arena_name, dir=str(mount.folder), blocks=8, block_bytes=1 << 20,
                            pin="off", helper=False) as arena:
        with arena.allocate(4, keys=keys) as fill:
            held = fill.register()
        found = kvshm_cli("stat", "--json", *where, arena_name).json
        assert found["sizes"]["bytes"] == arena.info().bytes
        assert found["sizes"]["bytes"] % mount.page == 0
        assert found["sizes"]["page_bytes"] == arena.info().page_bytes
        assert found["processes"][0]["held_blocks"] == 4
        if mount.kind == "hugetlbfs":
            assert found["sizes"]["pinned"] is True  # such pages are never swapped
        assert kvshm_cli("verify", *where, arena_name).code == 0
        listed = kvshm_cli("list", *where).out
        assert any(line.split()[0] == arena_name and " healthy " in line
                   for line in listed.splitlines())
        held.release()
    assert kvshm_cli("rm", *where, arena_name).code == 0
