# SPDX-License-Identifier: Apache-2.0
"""The doctor tells the file systems apart by what they really give."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mounts import Mount, private_mount

doctor = pytest.importorskip("kvshm.tools.doctor")


def statuses(options: object) -> dict[str, str]:
    return {p.name: p.status for p in doctor.run_all(options)}


@pytest.mark.parametrize("mount", ["tmpfs-huge", "hugetlbfs"], indirect=True)
def test_huge_pages_and_behaviours_on_mounts_that_give_them(mount: Mount, tmp_path: Path) -> None:
    found = statuses(doctor.Options(arenas=mount.folder, tier=tmp_path))
    assert found["huge pages"] == "ok"
    behaviours = list(found)[list(found).index("life byte"):]
    if mount.kind == "hugetlbfs":  # the pool is too small to show it
        behaviours.remove("device byte")
    assert {found[name] for name in behaviours} == {"ok"}


def test_mount_that_gives_no_huge_pages(tmp_path: Path) -> None:
    with private_mount("tmpfs", "huge=never,size=64m") as folder:
        found = statuses(doctor.Options(arenas=folder, tier=tmp_path))
        assert found["huge pages"] == "warn"


def test_full_mount_is_told_from_one_that_refuses(tmp_path: Path) -> None:
    with private_mount("tmpfs", "size=2m") as folder:
        (folder / "filler").write_bytes(bytes(2 << 20))
        found = statuses(doctor.Options(arenas=folder, tier=tmp_path))
        assert found["shm mount"] == "fail"
        assert found["huge pages"] == found["pinning"] == found["device byte"] == "skip"
