# SPDX-License-Identifier: Apache-2.0
"""`kvshm list`, `stat` and `rm` on everything that can lie under an arena's name."""
import json
import os
import shutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import numpy as np
import pytest
from kvshm.tools.inspector import counters, locks, objects
from kvshm.tools.inspector.view import View
from support import shm_dir
from support.cli import Copy, kvshm_cli

ROOT = Path(__file__).resolve().parents[2]
KEYS = np.random.default_rng(11).integers(1, 256, (12, 16), np.uint8)


@pytest.fixture(scope="session")
def documents() -> Any:
    return json.loads((ROOT / "docs/inspector.schema.json").read_text())


@pytest.fixture
def arena(arena_name: str) -> Iterator[Any]:
    """12 keyed blocks of which 8 are held by a lease, 2 private fills; 16 in all."""
    ident = kvshm.Identity(model="m", weights="w", dtype="bfloat16", layout="BLHNC",
                           block_tokens=16)
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=4096, pin="off", helper=False,
                            identity=ident, label="worker-0") as arena:
        fill = arena.allocate(12, keys=KEYS)
        fill.copy_in(0, np.zeros(4096, np.uint8))
        fill.register().release()
        lease = arena.match(KEYS[:8], tag="prompt")
        rest = arena.allocate(2)
        yield arena
        rest.abort()
        lease.release()


def rows(out: str) -> dict[str, list[str]]:
    """The columns of `kvshm list`, by name."""
    return {line.split()[0]: re.split(r" {2,}", line) for line in out.splitlines()[1:]}


def masked(out: str) -> str:
    """Numbers, times and ids as #, so that text can be compared."""
    out = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b[0-9a-f]{32}\b", "#", out)
    out = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", out)
    out = re.sub(r"(?m)^(charged_group +)(-|/.*)$", r"\1GROUP", out)
    out = re.sub(r"\d+(\.\d+)?", "#", out)
    return re.sub(r" +", " ", out)


def test_list(arena: Any, documents: Any) -> None:
    result = kvshm_cli("list")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == \
        ["NAME", "SIZE", "USED", "BLOCKS", "PROCS", "STATE", "LAYOUT"]
    assert rows(result.out)[arena.name][1:] == \
        ["2.47 MiB", "56 KiB 87%", "16 x 4 KiB", "1", "healthy", "1"]
    document = kvshm_cli("list", "--json").json
    jsonschema.validate(document, documents)
    (one,) = (a for a in document["arenas"] if a["name"] == arena.name)
    assert (one["blocks_total"], one["blocks_free"], one["used_bytes"]) == (16, 2, 14 * 4096)
    assert (one["processes_alive"], one["processes_dead"], one["mode"]) == (1, 0, "0600")


def test_list_looks_into_other_directories(arena_name: str, tmp_path: Path) -> None:
    kvshm.Arena.create(arena_name, dir=str(tmp_path), blocks=4, block_bytes=0, pin="off",
                       helper=False).close()
    assert arena_name not in rows(kvshm_cli("list").out)
    out = kvshm_cli("list", "--dir", tmp_path).out
    assert rows(out)[arena_name][3:] == ["4 x 0 B", "0", "idle", "1"]


@pytest.mark.parametrize("mode, wide", [(0o600, False), (0o660, False), (0o640, True),
                                        (0o666, True), (0o604, True)])
def test_wide_modes_are_warned_of(arena: Any, mode: int, wide: bool) -> None:
    os.chmod(arena.path, mode)
    for verb in (["list"], ["stat", arena.name], ["list", "--json"]):
        done = kvshm_cli(*verb)
        assert (f"{arena.name}: mode {mode:04o} lets other users in" in done.err) == wide
        assert done.code == 0


def test_stat_as_golden_text(arena: Any) -> None:
    result = kvshm_cli("stat", arena.name)
    assert result.code == 0
    found = masked(result.out.replace(arena.name, "ARENA"))
    # The list of totals stands in the header, and there only.
    before, totals, after = re.split(r"# totals\n|\n# policy\n", found)
    assert totals.split() == [w for name in counters.totals() for w in (name, "#")]
    golden = (Path(__file__).parent / "cli_stat.txt").read_text()
    assert before + "# policy\n" + after == golden


def test_stat_as_document(arena: Any, documents: Any) -> None:
    d = kvshm_cli("stat", "--json", arena.name).json
    jsonschema.validate(d, documents)
    assert d["stats"] == dict(arena.stats())
    info = arena.info()
    for name in ("bytes", "block_bytes", "data_offset", "metadata_bytes", "private_bytes",
                 "page_bytes", "numa"):
        assert d["sizes"][name] == getattr(info, name), name
    assert d["sizes"]["pinned"] is False
    assert bytes.fromhex(d["arena"]["fingerprint"]) == info.fingerprint
    assert bytes.fromhex(d["arena"]["uuid"].replace("-", "")) == info.uuid
    assert d["arena"]["identity"] == json.loads(info.identity)
    assert d["arena"]["epochs"] == [0] and d["arena"]["foreign_attaches"] is None
    assert (d["arena"]["charged_group"] or "") == info.charged_group
    (p,) = d["processes"]
    assert (p["pid"], p["label"], p["alive"]) == (os.getpid(), "worker-0", True)
    assert p["condition"] in ("running", "sleeping") and p["epoch"] == 0
    assert (p["held_blocks"], p["filling_blocks"], p["leases"]) == (8, 2, 1)
    assert p["counters"]["registered_total"] == 12
    (lease,) = d["leases"]
    assert (lease["tag"], lease["count"], lease["pid"]) == ("prompt", 8, os.getpid())
    assert 0 <= lease["age_seconds"] < 60
    assert d["policy"]["name"] == "adaptive" and d["policy"]["sample"] == 24


def test_stat_sees_a_pinned_arena(arena_name: str) -> None:
    try:
        arena = kvshm.Arena.create(arena_name, blocks=4, block_bytes=4096, pin="require",
                                   helper=False)
    except kvshm.Unsupported:
        pytest.skip("mlock is refused here")
    with arena:
        assert kvshm_cli("stat", "--json", arena_name).json["sizes"]["pinned"] is True
    idle = kvshm_cli("stat", "--json", arena_name).json
    assert idle["sizes"]["pinned"] is None and idle["arena"]["state"] == "idle"


def test_interval(arena: Any, documents: Any) -> None:
    lines = kvshm_cli("stat", "--interval", "0.02", "--count", "2", arena.name).out.splitlines()
    assert [len(line.split()) for line in lines] == [12, 13, 13]  # "0 B" is two words
    assert lines[1].split()[:6] == ["2", "2", "8", "4", "0", "1"]
    out = kvshm_cli("stat", "--json", "--interval", "0.02", "--count", "3", arena.name).out
    for line in out.splitlines():
        jsonschema.validate(json.loads(line), documents)
    assert out.count("\n") == 3


def test_interval_counts_per_second(arena: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvshm.tools.cli import interval

    def busy(seconds: float) -> None:
        for _ in range(10):
            arena.match(KEYS[:4]).release()

    monkeypatch.setattr(interval.time, "sleep", busy)
    clock = iter(range(0, 1000, 2))  # two seconds between any two readings
    monkeypatch.setattr(interval.time, "monotonic", lambda: float(next(clock)))
    line = json.loads(kvshm_cli("stat", "--json", "--interval", "1", "--count", "1",
                                arena.name).out)
    assert line["per_second"]["lookups_total"] == line["per_second"]["hits_total"] == 20
    text = kvshm_cli("stat", "--interval", "1", "--count", "1", arena.name).out
    assert text.split()[-1] == "100.0%"


def test_interval_ends_when_the_arena_goes(arena_name: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    from kvshm.tools.cli import interval

    kvshm.Arena.create(arena_name, blocks=4, block_bytes=64, pin="off", helper=False).close()
    monkeypatch.setattr(interval.time, "sleep", lambda s: kvshm.remove(arena_name))
    result = kvshm_cli("stat", "--interval", "1", arena_name)
    assert (result.code, result.err) == (3, f"kvshm: {arena_name}: was removed\n")


# What is no sound arena -------------------------------------------------------------------------

@pytest.fixture
def source(arena_name: str, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    kvshm.Arena.create(arena_name, dir=str(folder), blocks=8, block_bytes=4096, pin="off",
                       helper=False).close()
    return folder / f"kvshm.{arena_name}"


def broken_magic(c: Copy) -> None:
    c.superblock["magic"] ^= 1


def broken_geometry(c: Copy) -> None:
    c.superblock["geometry"]["hot_off"] += 4096


def absurd_geometry(c: Copy) -> None:
    c.superblock["geometry"]["blocks"] = 1 << 60


def cut_off(c: Copy) -> None:
    os.truncate(c.path, c.geometry.data_off)


def foreign_file(c: Copy) -> None:
    c.path.write_bytes(b"not an arena\n" * 1000)


def short_file(c: Copy) -> None:
    c.path.write_bytes(b"hello")


def newer_layout(c: Copy) -> None:
    c.superblock["layout_version"] = 2


def other_hash(c: Copy) -> None:
    c.superblock["layout_hash"] += 1


def symbolic_link(c: Copy) -> None:
    target = c.path.with_name("elsewhere")
    c.path.rename(target)
    c.path.symlink_to(target)


def named_pipe(c: Copy) -> None:
    c.path.unlink()
    os.mkfifo(c.path)


UNSOUND = {
    broken_magic: ("damaged", "its magic is "), broken_geometry: ("damaged", "does not add up"),
    absurd_geometry: ("damaged", "does not add up"), cut_off: ("damaged", "cut off: "),
    foreign_file: ("foreign", "no kvshm arena"), short_file: ("foreign", "5 bytes are no arena"),
    newer_layout: ("other layout", "layout 2 (hash "), other_hash: ("other layout", "layout 1"),
    symbolic_link: ("foreign", "not a regular file"),
    named_pipe: ("foreign", "not a regular file")}


@pytest.mark.parametrize("spoil", UNSOUND, ids=lambda s: s.__name__)
def test_unsound(spoil: Any, source: Path, tmp_path: Path, documents: Any) -> None:
    """Shown as what it is; looked into by no verb; removed by force alone, which says how."""
    c = Copy(source, tmp_path)
    spoil(c)
    state, why = UNSOUND[spoil]
    row = next(line for line in kvshm_cli("list", "--dir", tmp_path).out.splitlines()
               if line.startswith(c.name))
    assert re.search(state if state == "other layout" else rf"{state} \(.*{re.escape(why)}", row)
    listed = kvshm_cli("list", "--json", "--dir", tmp_path).json
    jsonschema.validate(listed, documents)
    for verb in ("stat", "verify", "reap"):
        result = c.cli(verb)
        assert (result.code, result.out) == (5, "")
        assert result.err.startswith(f"kvshm: {c.name}: ") and why in result.err
        assert result.err.count("\n") == 1
    assert c.cli("rm").code == 5
    assert c.path.exists() or c.path.is_symlink()
    assert c.cli("rm", "--force", "--dry-run").code == 1
    done = c.cli("rm", "--force", "--json")
    jsonschema.validate(done.json, documents)
    assert (done.code, done.json["bare_unlink"], done.json["state"]) == (0, True, state)
    assert not c.path.exists() and not c.path.is_symlink()
    if spoil is symbolic_link:
        assert c.path.with_name("elsewhere").exists()


def test_unlink_on_the_shm_mount_says_so(arena_name: str) -> None:
    path = shm_dir / f"kvshm.{arena_name}"
    path.write_bytes(b"x" * 8192)
    result = kvshm_cli("rm", "--force", arena_name)
    assert (result.code, result.out) == (
        0, f"{arena_name}: removed (8 KiB), by a bare unlink: foreign (no kvshm arena)\n")
    assert not path.exists()


def test_unfinished(arena_name: str, source: Path, tmp_path: Path) -> None:
    """Without its magic, or without a byte: being made while somebody holds the creation byte."""
    for content in ("nothing", "no magic"):
        c = Copy(source, tmp_path)
        if content == "nothing":
            os.truncate(c.path, 0)
        else:
            c.superblock["magic"] = 0
        with c.lock(locks.CREATION):
            assert "unfinished (being made)" in kvshm_cli("list", "--dir", tmp_path).out
            assert c.cli("stat").code == 6
        assert "unfinished (its creator died" in kvshm_cli("list", "--dir", tmp_path).out
        result = c.cli("verify")
        assert (result.code, "unfinished, its creator died" in result.err) == (6, True)
        assert c.cli("rm").code == 0
        assert not c.path.exists()


def test_removed_but_still_named(source: Path, tmp_path: Path) -> None:
    """rm was killed between its mark and its unlink."""
    c = Copy(source, tmp_path)
    c.superblock["dead"] = 1
    assert "removed (marked dead)" in kvshm_cli("list", "--dir", tmp_path).out
    assert c.cli("stat").code == 3
    assert c.cli("rm").code == 0


def test_rm(arena_name: str, documents: Any) -> None:
    kvshm.Arena.create(arena_name, blocks=8, block_bytes=64, pin="off", helper=False).close()
    preview = kvshm_cli("rm", "--dry-run", "--json", arena_name)
    jsonschema.validate(preview.json, documents)
    assert (preview.code, preview.json["done"], preview.json["bare_unlink"]) == (1, False, False)
    assert (shm_dir / f"kvshm.{arena_name}").exists()
    assert kvshm_cli("rm", arena_name).out == f"{arena_name}: removed (2.41 MiB)\n"
    assert kvshm_cli("rm", arena_name).code == 3


def test_rm_refuses_while_anyone_lives(arena: Any) -> None:
    refused = kvshm_cli("rm", arena.name)
    assert (refused.code, refused.err) == (
        6, f"kvshm: {arena.name}: 1 process is attached: end them first; with --force they keep "
        "what they hold\n")
    forced = kvshm_cli("rm", "--force", arena.name)
    assert (forced.code, forced.out.endswith("; 1 process uses its memory still\n")) == (0, True)
    with pytest.raises(kvshm.ArenaReplaced):
        arena.match(KEYS[:1])


def test_damaged_in_use_is_not_unlinked(source: Path, tmp_path: Path) -> None:
    """A held life byte is a process, whatever the superblock says."""
    c = Copy(source, tmp_path)
    broken_magic(c)
    with c.live(4):
        assert c.cli("rm").code == 6
        assert c.path.exists()


def test_a_look_is_read_only(arena: Any) -> None:
    """The kernel refuses every write, through the descriptor and through the mapping."""
    fd, verdict = objects.look_up(arena.name)
    assert fd is not None
    with View(fd, arena.name, None, verdict) as view:
        with pytest.raises(OSError):
            os.write(fd, b"x")
        with pytest.raises(ValueError, match="read-only"):
            view.hot["word"][0] = 1
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()
                if line.endswith(view.path)]
        # The arena's own mappings of this process, and the look's: that of its metadata alone.
        look = [m for m in maps if m[1] == "r--s"]
        assert len(look) == 1
        begin, end = (int(x, 16) for x in look[0][0].split("-"))
        assert end - begin == view.geometry.data_off


def test_looking_writes_nothing(source: Path, tmp_path: Path) -> None:
    """Also where the object is sparse: its holes stay holes."""
    c = Copy(source, tmp_path)
    os.chmod(c.path, 0o400)
    before = c.path.read_bytes()
    for verb in ("stat", "verify", "reap"):
        assert c.cli(verb).code == 0
    assert c.path.read_bytes() == before
    path = tmp_path / "kvshm.hole"
    with path.open("wb") as f:
        f.truncate(1 << 20)
    held = path.stat().st_blocks
    assert kvshm_cli("stat", "--dir", tmp_path, "hole").code == 6
    assert path.stat().st_blocks == held


def test_examples_in_the_documentation_are_valid(documents: Any) -> None:
    text = (ROOT / "docs/inspector.md").read_text()
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    kinds = set()
    for example in examples:
        jsonschema.validate(example, documents)
        kinds.add(example["kind"])
    assert kinds == {"list", "stat", "interval", "verify", "verify-tier", "reap", "quota", "pin",
                     "rm", "warmup"}


def test_list_survives_an_object_that_is_cut_short(source: Path, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after it was judged sound: a mapping would die of SIGBUS."""
    from kvshm.tools.cli import arenas

    copy = tmp_path / source.name
    shutil.copyfile(source, copy)
    look_up = arenas.look_up

    def cut_after(name: str, folder: str | None) -> Any:
        found = look_up(name, folder)
        if folder:
            os.truncate(copy, 4096)
        return found
    monkeypatch.setattr(arenas, "look_up", cut_after)
    done = kvshm_cli("list", "--json", "--dir", tmp_path)
    one, = [a for a in done.json["arenas"] if a["path"] == str(copy)]
    assert one["state"] == "damaged" and "cut short" in one["detail"]
