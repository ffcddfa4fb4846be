# SPDX-License-Identifier: Apache-2.0
"""`kvshm quota`, `pin` and `unpin`, and what `stat` says of tenants, pins and refusals."""
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import pytest
from support.cli import kvshm_cli
from support.oracle import raw_keys, store

DOCUMENTS = json.loads(
    (Path(__file__).resolve().parents[2] / "docs/inspector.schema.json").read_text())
KEYS = raw_keys(0, 12)


@pytest.fixture
def arena(arena_name: str) -> Iterator[Any]:
    """100 blocks: 4 of nobody, 8 of acme."""
    with kvshm.Arena.create(arena_name, blocks=100, block_bytes=64, pin="off",
                            helper=False) as arena:
        store(arena, KEYS[:4]).release()
        store(arena, KEYS[4:], tenant=arena.tenant("acme")).release()
        yield arena


def document(*argv: object, code: int = 0) -> Any:
    result = kvshm_cli(*argv, "--json")
    assert result.code == code, result.err
    jsonschema.validate(result.json, DOCUMENTS)
    return result.json


def test_quota_shows_and_sets(arena: Any) -> None:
    before = document("quota", arena.name)
    acme = arena.tenant("acme")
    assert [(t["tenant"], t["name"], t["used_blocks"], t["counted_blocks"], t["quota_blocks"])
            for t in before["tenants"]] == [(0, "", 4, None, None), (acme, "acme", 8, None, None)]
    assert before["pins"] == {"pinned_blocks": 0, "budget_blocks": None}
    after = document("quota", arena.name, "--tenant", "acme", "--blocks", "20%", "--pins", "3")
    assert after["tenants"] == [
        {"tenant": acme, "name": "acme", "used_blocks": 8, "counted_blocks": 8, "quota_blocks": 20,
         "weight": None, "share_blocks": None}]
    assert after["pins"]["budget_blocks"] == 3
    document("quota", arena.name, "--tenant", acme, "--weight", "3")
    both = {t["tenant"]: t for t in document("quota", arena.name)["tenants"]}
    assert (both[acme]["quota_blocks"], both[acme]["weight"]) == (20, 3)  # the other one stays
    assert (both[acme]["share_blocks"], both[0]["share_blocks"]) == (75, 25)
    assert [t.share for t in arena.tenants()] == [25, 75]  # as the library has it
    document("quota", arena.name, "--tenant", "acme", "--blocks", "none", "--weight", "none",
             "--pins", "none")
    assert document("quota", arena.name) | {"taken_at": ""} == before | {"taken_at": ""}
    text = kvshm_cli("quota", arena.name).out
    assert "acme" in text and "0 blocks pinned (priority 100), no budget" in text


@pytest.mark.parametrize("argv", [("--blocks", "3"), ("--weight", "3"),
                                  ("--tenant", "acme", "--blocks", "many"),
                                  ("--tenant", "acme", "--blocks", "0"),
                                  ("--tenant", "300", "--blocks", "3"), ("--pins", "-1")], ids=str)
def test_quota_refuses(arena: Any, argv: tuple[str, ...]) -> None:
    result = kvshm_cli("quota", arena.name, *argv)
    assert result.code == 2 and result.err.startswith("kvshm: ")


def test_pin_and_unpin_by_key(arena: Any, tmp_path: Path) -> None:
    listed = tmp_path / "keys"
    listed.write_text("\n".join(bytes(k).hex() for k in (*KEYS[:2], *raw_keys(900, 1))))
    d = document("pin", arena.name, "--keys", listed, code=1)
    assert (d["done"], d["missing"], d["refused"]) == (2, 1, "")
    assert d["pins"] == {"pinned_blocks": 2, "budget_blocks": None}
    assert arena.pins() == (2, None)
    arena.allocate(98).abort()
    assert int((arena.presence(KEYS) != 0).sum()) == 2
    assert document("unpin", arena.name)["done"] == 2  # all that is pinned
    assert arena.pins() == (0, None)


def test_pin_by_tenant_within_the_budget(arena: Any) -> None:
    arena.set_pin_budget(5)
    d = document("pin", arena.name, "--tenant", "acme", "--seconds", "60", code=1)
    assert d["done"] == 5 and "may be" in d["refused"] and d["pins"]["pinned_blocks"] == 5
    stat = document("stat", arena.name)
    assert stat["pins"] == {"pinned_blocks": 5, "budget_blocks": 5}
    assert stat["stats"]["refused_pinned_total"] == 1
    assert [t["name"] for t in stat["tenants"]] == ["", "acme"]
    text = kvshm_cli("stat", arena.name).out
    assert "# tenants" in text and "refused_quota_total" in text and "budget_blocks  5" in text
    assert document("unpin", arena.name, "--tenant", "acme")["done"] == 5
    assert kvshm_cli("pin", arena.name).code == 2
    assert "pin what?" in kvshm_cli("pin", arena.name).err


def test_verify_knows_the_new_invariants(arena: Any) -> None:
    store(arena, raw_keys(50, 1), ttl=60, priority=70, priority_seconds=60).release()
    assert [i["number"] for i in document("verify", arena.name)["invariants"]] == [*range(1, 17)]
