# SPDX-License-Identifier: Apache-2.0
"""What `kvshm list`, `stat` and `rm` say of an arena's tier."""
import json
from pathlib import Path

import jsonschema
import kvshm
import pytest
from kvshm.tools.cli import tier as cli_tier
from kvshm.tools.inspector import tiers
from support import shm_dir
from support.arenas import eventually, keys, store
from support.cli import kvshm_cli

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/inspector.schema.json").read_text())
WANTED = keys(6, seed=5)


@pytest.fixture
def arena(arena_name, tmp_path):
    """6 blocks, in memory and on disk."""
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=4096, pin="off",
                            tier=tmp_path / "tier", tier_size="1MiB",
                            tier_options={"engine": "threads"}) as arena:
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        store(arena, WANTED).release()
        assert arena.tier_drain(10)
        yield arena


def document(*args):
    found = kvshm_cli(*args, "--json")
    one = json.loads(found.out)
    jsonschema.validate(one, SCHEMA)
    return one


def test_stat(arena, tmp_path):
    tier = document("stat", arena.name)["tier"]
    info = arena.tier
    assert tier["image"] == info.image and tier["files"] == str(tmp_path / "tier")
    assert (tier["state"], tier["slots"], tier["slots_used"]) == ("ok", info.slots, 6)
    assert tier["used_bytes"] == 6 * 4096 and tier["queued"] == tier["slots_filling"] == 0
    (one,) = tier["processes"]
    assert (one["engine"], one["state"], one["direct"]) == ("threads", "ok", info.direct)
    text = kvshm_cli("stat", arena.name).out
    section = text.split("# tier\n")[1].split("\n\n")[0]
    assert str(tmp_path / "tier") in section and f"6 of {info.slots} used" in section
    assert "threads" in section and "6 of 6 blocks" in section


def test_stat_without_a_tier(arena_name):
    with kvshm.Arena.create(arena_name, blocks=4, block_bytes=4096, pin="off"):
        assert document("stat", arena_name)["tier"] is None
        assert "# tier\nnone" in kvshm_cli("stat", arena_name).out


def test_how_far_it_is_read_back():
    assert cli_tier.bar(0, 100, 10) == "░" * 10 and cli_tier.bar(100, 100, 10) == "█" * 10
    assert cli_tier.bar(37, 100, 10) == "███" + "░" * 7 and cli_tier.bar(5, 0, 4) == "░░░░"
    shown = cli_tier.render(dict(
        image="a-g3", files="/x", state="rebuilding", slots=1000, slots_used=400, slots_filling=0,
        used_bytes=1 << 20, rebuild_done=620, rebuild_total=1000, rebuild_kept=400, queued=0,
        in_flight=0, processes=[]), dict.fromkeys(
            ["tier_loaded_total", "tier_load_failed_total", "tier_read_bytes_total",
             "tier_stored_total", "tier_offered_total", "tier_write_bytes_total"], 0), False)
    assert "62%, 620 of 1000 slots, 400 kept" in shown and "█" in shown


def test_list_shows_the_image_beneath_its_arena(arena):
    listed = {one["name"]: one for one in document("list")["arenas"]}
    assert f"{arena.name}-g3" not in listed
    tier = listed[arena.name]["tier"]
    assert tier["image"] == f"{arena.name}-g3" and tier["state"] == "ok"
    assert tier["slots_used"] == 6 and tier["processes_alive"] == 1
    lines = kvshm_cli("list").out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[0] == arena.name)
    assert lines[at + 1].startswith(f"  {arena.name}-g3 ") and "disk: ok" in lines[at + 1]
    # By its own name it is an arena like any other.
    assert document("stat", f"{arena.name}-g3")["stats"]["blocks_inactive"] == 6


def test_an_image_that_is_left_alone_is_listed(arena):
    arena.close()
    Path(shm_dir, f"kvshm.{arena.name}").unlink()
    listed = {one["name"] for one in document("list")["arenas"]}
    assert f"{arena.name}-g3" in listed and arena.name not in listed


def test_an_arena_that_only_has_such_a_name(arena_name):
    with kvshm.Arena.create(arena_name, blocks=4, block_bytes=4096, pin="off"), \
            kvshm.Arena.create(f"{arena_name}-g3", blocks=4, block_bytes=4096, pin="off"):
        listed = {one["name"]: one for one in document("list")["arenas"]}
        assert listed[arena_name]["tier"] is None and f"{arena_name}-g3" in listed
        assert document("stat", arena_name)["tier"] is None
    assert document("rm", arena_name)["tier"] is None
    assert document("rm", f"{arena_name}-g3")["done"]


def test_rm_takes_the_image_and_leaves_the_file(arena, tmp_path):
    path = tmp_path / "tier"
    assert kvshm_cli("rm", arena.name).code == 6
    arena.close()
    would = document("rm", "--dry-run", arena.name)
    assert would["tier"] == {"image": f"{arena.name}-g3", "files": str(path)}
    gone = kvshm_cli("rm", arena.name)
    assert gone.code == 0 and f"stay in {path}" in gone.out
    assert not list(Path(shm_dir).glob(f"kvshm.{arena.name}*")) and path.exists()
    with kvshm.Arena.create(arena.name, blocks=16, block_bytes=4096, pin="off", tier=path) as again:
        assert eventually(lambda: again.tier.state == kvshm.TierState.OK)
        assert again.tier.ready == 6


def test_why():
    assert tiers.why(0) == "" and tiers.why(-1) == "Operation not permitted"
