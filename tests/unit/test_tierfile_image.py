# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify ARENA --tier`: a tier's file beside the image of its slots in shared memory."""
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import numpy as np
import pytest
from support.cli import Outcome, kvshm_cli

pytest.importorskip("xxhash")
from support.tier_files import PAGE, TierFiles, record, superblock  # noqa: E402

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[2] / "docs/inspector.schema.json").read_text())
SLOTS = 24


class Imaged:
    """A tier file and its image, whose blocks are all READY; block i is slot i."""

    def __init__(self, arena: Any, name: str, folder: Path) -> None:
        self.arena, self.name = arena, name
        keys = np.random.default_rng(9).integers(1, 256, (SLOTS, 16), np.uint8)
        with arena.allocate(SLOTS, keys=keys) as fill:
            by_slot = {int(slot): bytes(keys[i]) for i, slot in enumerate(fill.ids)}
            self.file = TierFiles(folder, slots=SLOTS, empty=(), owner=arena.info().uuid,
                                  keys=[by_slot[slot] for slot in range(SLOTS)])
            for i, slot in enumerate(map(int, fill.ids)):
                fill.copy_in(i, self.file.records[slot])
            fill.register().release()

    def verify(self, *argv: object) -> Outcome:
        outcome = kvshm_cli("verify", self.name, "--json", *argv, "--tier", *self.file.paths)
        if outcome.out:
            jsonschema.validate(outcome.json, SCHEMA)
        return outcome

    def states(self) -> dict[str, int]:
        return {name: n for name, n in self.verify().json["states"].items() if n}

    def damage(self) -> dict[int, str]:
        return {f["slot"]: f["state"] for f in self.verify().json["findings"]}


@pytest.fixture
def imaged(arena_name: str, tmp_path: Path) -> Iterator[Imaged]:
    with kvshm.Arena.create(arena_name + "-g3", blocks=SLOTS, block_bytes=64, pin="off",
                            helper=False) as arena:
        yield Imaged(arena, arena_name, tmp_path)


def new_life(imaged: Imaged, slot: int, payload: bytes) -> bytes:
    """The image's descriptor of other bytes under the same key. Returns it."""
    made = record(slot, imaged.file.keys[slot], payload)
    image = Path(f"/dev/shm/kvshm.{imaged.name}-g3")
    offset = image.read_bytes().index(imaged.file.records[slot])
    with open(image, "r+b") as f:
        f.seek(offset)
        f.write(made)
    return made


def test_as_the_arena_has_it(imaged: Imaged) -> None:
    outcome = imaged.verify()
    assert outcome.code == 0 and outcome.json["arena"] == imaged.name + "-g3"
    assert imaged.states() == {"ok": SLOTS}
    image = kvshm_cli("verify", imaged.name + "-g3", "--json", "--tier", *imaged.file.paths)
    assert image.json["arena"] == imaged.name + "-g3"  # its own name will do, too
    assert "compared with" in kvshm_cli("verify", imaged.name, "--tier", *imaged.file.paths).out


def test_a_slot_that_was_given_up(imaged: Imaged) -> None:
    """Its old descriptor is still in the file, and its bytes may be others by now."""
    assert imaged.arena.evict([imaged.file.keys[3]]) == 1
    imaged.file.flip_payload(3, 0)
    assert imaged.verify().code == 0 and imaged.states() == {"ok": SLOTS - 1, "stale": 1}
    alone = kvshm_cli("verify", "--json", "--tier", *imaged.file.paths)
    assert alone.code == 1  # the file alone cannot tell
    imaged.file.describe(3, bytes(64))
    assert imaged.states() == {"ok": SLOTS - 1, "empty": 1}
    imaged.file.put(0, 2 * PAGE + 3 * 64, b"torn" * 16)
    assert imaged.damage() == {3: "record"}


def test_a_page_that_is_to_be_written(imaged: Imaged) -> None:
    """New bytes lie in the slot; the file's descriptor is the old one, nothing, or torn."""
    payload = bytes(range(256)) * 10
    new_life(imaged, 5, payload)
    assert imaged.damage() == {5: "checksum"}  # announced before its bytes were there: never so
    imaged.file.store(5, payload)
    assert imaged.states() == {"ok": SLOTS - 1, "behind": 1} and imaged.verify().code == 0
    for old in (bytes(64), b"torn" * 16):
        imaged.file.put(0, 2 * PAGE + 5 * 64, old)
        assert imaged.states() == {"ok": SLOTS - 1, "behind": 1}


def test_the_same_record_and_other_bytes(imaged: Imaged) -> None:
    imaged.file.flip_payload(7, 77)
    assert imaged.verify().code == 1 and imaged.damage() == {7: "checksum"}


def test_a_damaged_image(imaged: Imaged) -> None:
    image = Path(f"/dev/shm/kvshm.{imaged.name}-g3")
    offset = image.read_bytes().index(imaged.file.records[9])
    with open(image, "r+b") as f:
        f.seek(offset + 33)
        f.write(b"\xff")
    assert imaged.damage() == {9: "image"}


def test_a_record_of_another_key(imaged: Imaged) -> None:
    """Whole, and of this slot, but not of the key that the image's block has."""
    other = record(11, b"another key 1234", imaged.file.payloads[11])
    image = Path(f"/dev/shm/kvshm.{imaged.name}-g3")
    offset = image.read_bytes().index(imaged.file.records[11])
    with open(image, "r+b") as f:
        f.seek(offset)
        f.write(other)
    imaged.file.describe(11, other)
    assert imaged.damage() == {11: "image"}


def test_another_owner(imaged: Imaged) -> None:
    imaged.file.put(0, 0, superblock(**imaged.file.block(0, sequence=2, owner=b"N" * 16,
                                                         owner_name=b"t-other")))
    said = imaged.verify()
    assert said.code == 5 and "belongs to arena t-other" in said.err
    assert said.err.endswith(": leave ARENA out\n")


def test_no_such_arena(imaged: Imaged) -> None:
    said = kvshm_cli("verify", "nothing-there", "--tier", *imaged.file.paths)
    assert said.code == 3 and "kvshm.nothing-there-g3" in said.err


def test_not_an_image(imaged: Imaged, arena_name: str, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    more = TierFiles(tmp_path / "more", slots=SLOTS + 1, owner=imaged.arena.info().uuid)
    said = kvshm_cli("verify", imaged.name, "--tier", *more.paths)
    assert said.code == 5 and f"it has {SLOTS} slots, the file {SLOTS + 1}" in said.err
