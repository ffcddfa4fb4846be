# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify --tier` on files written byte by byte, and damaged in every way that we know."""
import fcntl
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.cli import Outcome, kvshm_cli

pytest.importorskip("xxhash")
from support.tier_files import PAGE, TierFiles, record, superblock  # noqa: E402

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[2] / "docs/inspector.schema.json").read_text())


def verify(tier: TierFiles, *argv: object) -> Outcome:
    return kvshm_cli("verify", "--json", *argv, "--tier", *tier.paths)


def states(outcome: Outcome) -> dict[str, int]:
    jsonschema.validate(outcome.json, SCHEMA)
    return {name: n for name, n in outcome.json["states"].items() if n}


def damage(outcome: Outcome) -> dict[int, str]:
    """What is wrong, by slot."""
    jsonschema.validate(outcome.json, SCHEMA)
    return {f["slot"]: f["state"] for f in outcome.json["findings"]}


@pytest.fixture(params=[1, 3], ids=["one file", "three files"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> TierFiles:
    return TierFiles(tmp_path, files=request.param)


def test_sound(tier: TierFiles) -> None:
    outcome = verify(tier)
    assert outcome.code == 0 and outcome.err == ""
    assert states(outcome) == {"empty": 2, "ok": 38}
    d = outcome.json
    assert (d["owner_name"], d["slots"], d["live"], d["arena"]) == ("t-tier", 40, False, None)
    assert [c["state"] for c in d["files"][0]["superblocks"]] == ["empty", "good"]
    assert d["engine"] in ("io_uring", "pread") and (d["engine"] == "io_uring" or d["why"])


def test_text(tier: TierFiles) -> None:
    tier.flip_payload(7, 100)
    said = kvshm_cli("verify", "--tier", *tier.paths)
    assert said.code == 1 and "checksum      1" in said.out and "slot 7" in said.out
    assert said.err == f"kvshm: {tier.paths[0]}: 1 slot damaged: a load of one is a miss\n"
    assert kvshm_cli("verify", "-q", "--tier", *tier.paths).out == ""


def test_files_in_any_order(tier: TierFiles) -> None:
    outcome = kvshm_cli("verify", "--json", "--tier", *reversed(tier.paths))
    assert states(outcome) == {"empty": 2, "ok": 38}


# Every block size: one byte, around a page, many pages --------------------------------------------

@pytest.mark.parametrize("block_bytes", [3, 511, 4095, 4096, 4097, 3098112])
def test_sizes(tmp_path: Path, block_bytes: int) -> None:
    made = TierFiles(tmp_path, block_bytes=block_bytes, slots=9, empty=())
    assert states(verify(made)) == {"ok": 9}
    made.flip_payload(8, block_bytes - 3)  # its last byte
    assert damage(verify(made)) == {8: "checksum"}


def test_many_small_slots(tmp_path: Path) -> None:
    """More than one read has room for, in blocks between gaps."""
    gaps = tuple(i for i in range(2000) if i % 700 > 300)
    made = TierFiles(tmp_path, block_bytes=64, slots=2000, empty=gaps, files=2)
    chosen = random.Random(5).sample([i for i in range(2000) if i not in gaps], 25)
    for slot in chosen:
        made.flip_payload(slot, slot % 60)
    outcome = verify(made)
    assert damage(outcome) == dict.fromkeys(chosen, "checksum")
    assert states(outcome)["empty"] == len(gaps)


# S55: bit rot -----------------------------------------------------------------------------------

def test_flipped_bits_in_payloads(tier: TierFiles) -> None:
    chosen = [0, 1, 2, 10, 11, 20, 25, 30, 37, 38]
    for n, slot in enumerate(chosen):
        tier.flip_payload(slot, n * 500, n % 8)
    outcome = verify(tier)
    assert outcome.code == 1 and damage(outcome) == dict.fromkeys(chosen, "checksum")
    assert states(outcome)["ok"] == 28


def test_padding_is_nobodys(tier: TierFiles) -> None:
    tier.flip_payload(5, tier.slot_bytes - 1)
    assert verify(tier).code == 0


def test_a_flipped_bit_in_each_byte_of_a_record(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, slots=70, empty=())
    for at in range(64):
        made.flip_record(at, at, at % 8)
    outcome = verify(made)
    assert damage(outcome) == dict.fromkeys(range(64), "record") and states(outcome)["ok"] == 6


def test_swapped_payloads(tier: TierFiles) -> None:
    tier.store(12, tier.payloads[15])
    tier.store(15, tier.payloads[12])
    assert damage(verify(tier)) == {12: "checksum", 15: "checksum"}


def test_swapped_records(tier: TierFiles) -> None:
    """Each is whole, and of another slot."""
    tier.describe(12, record(15, tier.keys[15], tier.payloads[15]))
    tier.describe(15, record(12, tier.keys[12], tier.payloads[12]))
    assert damage(verify(tier)) == {12: "record", 15: "record"}


def test_payload_and_record_of_another_slot(tier: TierFiles) -> None:
    """A valid block of another key, moved with its record: the record knows its slot."""
    tier.store(12, tier.payloads[15])
    tier.describe(12, record(12, tier.keys[15], tier.payloads[15], seed=15))
    assert damage(verify(tier)) == {12: "record"}


def test_zeroed_pages(tier: TierFiles) -> None:
    tier.store(4, bytes(PAGE))
    tier.put(0, 2 * PAGE, bytes(64 * 3))  # records 0-2
    outcome = verify(tier)
    assert damage(outcome) == {4: "checksum"} and states(outcome)["empty"] == 5


def test_longer_than_a_block(tier: TierFiles) -> None:
    tier.describe(9, record(9, tier.keys[9], tier.payloads[9], length=tier.block_bytes + 1))
    assert damage(verify(tier)) == {9: "record"}


def test_a_record_without_a_key(tier: TierFiles) -> None:
    tier.describe(9, record(9, bytes(16), tier.payloads[9]))
    assert damage(verify(tier)) == {9: "record"}


def test_garbage_everywhere(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, slots=200)
    noise = random.Random(11)
    made.put(0, 2 * PAGE, noise.randbytes(made.paths[0].stat().st_size - 2 * PAGE))
    outcome = verify(made)
    assert outcome.code == 1 and states(outcome) == {"record": 200}
    assert len(outcome.json["findings"]) == 100 and outcome.json["damaged"] == 200
    assert len(verify(made, "--all").json["findings"]) == 200


# What is no damage --------------------------------------------------------------------------------

def test_notes(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, epoch=4)
    now = int(time.time())
    for slot, change in ((1, {"expires": now - 5}), (2, {"expires": now + 500}), (4, {"codec": 3}),
                         (5, {"epoch": 3}), (6, {"epoch": 3, "codec": 1, "expires": 1})):
        made.describe(slot, record(slot, made.keys[slot], made.payloads[slot],
                                   **({"epoch": 4} | change)))  # type: ignore[arg-type]
    made.describe(10, record(10, made.keys[10], made.payloads[10], epoch=5))  # of a moment ago
    for slot in (7, 8):
        made.describe(slot, record(slot, made.keys[9], made.payloads[slot], epoch=4))
    outcome = verify(made)
    assert outcome.code == 0 and outcome.json["findings"] == []
    assert states(outcome) == {"empty": 2, "ok": 32, "duplicate": 2, "expired": 1, "epoch": 1,
                               "codec": 2}
    made.flip_payload(4, 0)  # damage comes first
    assert damage(verify(made)) == {4: "checksum"}


# Superblocks ------------------------------------------------------------------------------------

def test_the_newer_copy_counts(tier: TierFiles) -> None:
    for i in range(tier.files):
        tier.put(i, 0, superblock(**tier.block(i, sequence=2, owner_name=b"t-newer")))
    d = verify(tier).json
    assert d["owner_name"] == "t-newer" and d["files"][0]["sequence"] == 2
    for i in range(tier.files):
        tier.put(i, PAGE, superblock(**tier.block(i, sequence=3, owner_name=b"t-newest")))
    assert verify(tier).json["owner_name"] == "t-newest"


@pytest.mark.parametrize("at", [0, 8, 12, 16, 40, 88, 112, 200, 1215, 1216, 1223])
def test_a_damaged_copy(tmp_path: Path, at: int) -> None:
    made = TierFiles(tmp_path, slots=4, empty=())
    made.put(0, 0, superblock(**made.block(0, sequence=2)))
    made.flip(0, at, 3)
    outcome = verify(made)
    assert outcome.code == 1 and states(outcome) == {"ok": 4}
    copy, other = outcome.json["files"][0]["superblocks"]
    assert copy["state"] == ("other version" if at == 8 else "damaged") and other["state"] == "good"
    assert outcome.json["files"][0]["sequence"] == 1
    assert "not all of its files are whole" in outcome.err
    made.flip(0, PAGE + at, 3)
    assert verify(made).code == 5


@pytest.mark.parametrize("change", [
    {"slots": 0}, {"slots": 1 << 33}, {"slot_bytes": 4096}, {"slot_bytes": 8193},
    {"block_bytes": 0}, {"records_offset": 4096}, {"records_offset": 8200},
    {"data_offset": 8192}, {"files": 0}, {"files": 9}, {"file": 1}])
def test_a_geometry_that_cannot_be(tmp_path: Path, change: dict[str, int]) -> None:
    made = TierFiles(tmp_path, slots=8)
    made.put(0, PAGE, superblock(**(made.block(0) | change)))
    said = verify(made)
    assert said.code == 5 and "neither copy of its superblock is whole" in said.err


def test_another_version(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, slots=8)
    made.put(0, PAGE, superblock(**made.block(0, version=2)))
    said = verify(made)
    assert said.code == 5
    assert said.err == (f"kvshm: {made.paths[0]}: format 2, and this reads 1: use the kvshm that "
                        "made it\n")


def test_files_of_two_sets(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one, two = TierFiles(tmp_path, files=2), TierFiles(tmp_path / "b", files=2)
    said = kvshm_cli("verify", "--tier", one.paths[0])
    assert said.code == 2 and "file 1 of 2 of a tier, and 1 were named" in said.err
    two.put(1, PAGE, superblock(**two.block(1, set=b"T" * 16)))
    said = kvshm_cli("verify", "--tier", one.paths[0], two.paths[1])
    assert said.code == 2 and "of another set" in said.err
    said = kvshm_cli("verify", "--tier", one.paths[0], one.paths[0])
    assert said.code == 2


# S62: cut off, and garbage ------------------------------------------------------------------------

@pytest.mark.parametrize("size", [0, 1, 1223, 8191])
def test_cut_within_the_head(tmp_path: Path, size: int) -> None:
    made = TierFiles(tmp_path, slots=8)
    if size > PAGE:
        size = PAGE + 1000  # within the one copy that there is
    os.truncate(made.paths[0], size)
    said = verify(made)
    assert said.code == 5 and str(made.paths[0]) in said.err and said.out == ""


def test_superblocks_only(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, slots=8)
    os.truncate(made.paths[0], 2 * PAGE)
    outcome = verify(made)
    assert outcome.code == 1 and states(outcome) == {"empty": 8}
    assert outcome.json["files"][0]["missing_bytes"] == 6 * 8192 + 16384 - 8192 + 2 * 8192


def test_head_only(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, slots=8)
    os.truncate(made.paths[0], made.data_offset)
    assert states(verify(made)) == {"empty": 1, "short": 7}


def test_one_byte_less_or_more(tmp_path: Path) -> None:
    made = TierFiles(tmp_path, block_bytes=4096, slots=8, empty=())
    made.describe(7, record(7, made.keys[7], made.payloads[7].ljust(4096, b"x")))
    made.store(7, made.payloads[7].ljust(4096, b"x"))
    whole = made.paths[0].stat().st_size
    os.truncate(made.paths[0], whole + 1)
    assert verify(made).code == 0
    os.truncate(made.paths[0], whole - 1)
    assert damage(verify(made)) == {7: "short"}
    os.truncate(made.paths[0], whole - 4096 - 1)
    assert damage(verify(made)) == {6: "short", 7: "short"}
    os.truncate(made.paths[0], made.data_offset + 1)
    assert damage(verify(made)) == dict.fromkeys(range(8), "short")


def test_what_is_no_tier_file(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(random.Random(1).randbytes(100_000))
    (tmp_path / "zeros").write_bytes(bytes(100_000))
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, code, why in (("noise", 5, "no tier file"), ("zeros", 5, "no tier file"),
                            ("text", 5, "superblock"), ("pipe", 5, "no regular file"),
                            ("folder", 5, "no regular file"), ("absent", 3, "no such file")):
        said = kvshm_cli("verify", "--tier", tmp_path / name)
        assert (said.code, said.out) == (code, "") and why in said.err, said
        assert said.err.startswith(f"kvshm: {tmp_path / name}: ") and said.err.count("\n") == 1


# How it reads -----------------------------------------------------------------------------------

def test_io_uring_refused(tier: TierFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvshm import uring

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(uring, "Ring", refuse)
    tier.flip_payload(20, 9)
    outcome = verify(tier)
    assert outcome.json["engine"] == "pread" and "Operation not permitted" in outcome.json["why"]
    assert damage(outcome) == {20: "checksum"}


@pytest.mark.parametrize("first", ["open", "read"])
def test_direct_refused(tier: TierFiles, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    real_open, real_read = os.open, os.preadv
    direct = set()

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT and first == "open":
            raise OSError(22, "Invalid argument")
        fd = real_open(path, flags, *rest, **more)
        direct.discard(fd)
        if flags & os.O_DIRECT:
            direct.add(fd)
        return fd

    def read(fd: int, *rest: Any) -> int:
        if fd in direct:
            raise OSError(22, "Invalid argument")
        return real_read(fd, *rest)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "preadv", read)
    outcome = verify(tier)
    assert states(outcome) == {"empty": 2, "ok": 38}
    assert all(not f["direct"] and "O_DIRECT" in f["why"] for f in outcome.json["files"])


def test_a_disk_that_gives_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slot 5's sectors, and the second page of records (slots 64-127)."""
    from kvshm import uring

    made = TierFiles(tmp_path, slots=130, empty=())
    bad = [(made.place(5)[1], made.place(5)[1] + made.slot_bytes), (3 * PAGE, 4 * PAGE)]
    real = os.preadv

    def read(fd: int, buffers: list[memoryview], offset: int) -> int:
        end = offset + len(buffers[0])
        if any(a < end and offset < b for a, b in bad):
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    def broken(ring: Any, fd: int, places: list[tuple[int, memoryview]], **_: Any) -> list[int]:
        return [read(fd, [buffer], offset) for offset, buffer in places]

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(uring.Ring, "read_many", broken)
    outcome = verify(made, "--all")
    assert damage(outcome) == dict.fromkeys([5, *range(64, 128)], "unreadable")
    assert "Input/output error" in outcome.json["findings"][0]["what"]


def test_a_disk_that_hangs(tier: TierFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvshm import uring

    def hang(*_: object, **__: object) -> None:
        raise TimeoutError(110, "no completion within 60 s")

    if verify(tier).json["engine"] != "io_uring":
        pytest.skip("io_uring is refused here, and a plain read cannot be limited")
    monkeypatch.setattr(uring.Ring, "read_many", hang)
    said = verify(tier)
    assert said.code == 6 and "does not answer" in said.err


def test_without_xxhash(tier: TierFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    said = verify(tier)
    assert said.code == 2 and "kvshm[tools]" in said.err


# While others work --------------------------------------------------------------------------------

def test_in_use(tier: TierFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged in one reading only was being written."""
    from kvshm.tools.tierfile import check

    pauses: list[float] = []
    tier.flip_payload(10, 5)
    tier.flip_payload(11, 5)
    tier.flip_record(12, 5)

    def heal(seconds: float) -> None:
        if not pauses:
            tier.flip_payload(10, 5)
            tier.flip_record(12, 5)
        pauses.append(seconds)

    monkeypatch.setattr(check.time, "sleep", heal)
    fd = os.open(tier.paths[0], os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK,
                    struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 1 << 62, 1, 0))
        outcome = verify(tier)
        assert outcome.json["live"] is True and outcome.json["readings"] == 3
        assert damage(outcome) == {11: "checksum"}
        tier.flip_payload(10, 5)
        assert damage(verify(tier, "--quiet-arena")) == {10: "checksum", 11: "checksum"}
    finally:
        os.close(fd)


def test_a_process_of_its_own(tier: TierFiles) -> None:
    """As people call it: no arena is there, and the library is not loaded."""
    code = ("import sys\nfrom kvshm.tools.cli.main import main\n"
            "rc = main(sys.argv[1:])\nassert 'kvshm.core' not in sys.modules\nsys.exit(rc)")
    done = subprocess.run([sys.executable, "-c", code, "verify", "--tier", *tier.paths],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "not in use" in done.stdout
