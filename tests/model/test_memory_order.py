"""docs/memory-order.md names every atomic of the shared layout, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "memory-order.md"
LAYOUT = ("cpp/arena/layout.hpp", "cpp/blocks/descriptor.hpp")
# Sections of the object that are arrays of words; and what is atomic in the process's own memory.
OWN = ("cpp/arena/arena.hpp", "cpp/arena/solo.hpp")


def atomics(path: str) -> set[str]:
    """Struct.field of each std::atomic member."""
    found: set[str] = set()
    struct = ""
    text = re.sub(r"//[^\n]*", "", (ROOT / path).read_text())
    for statement in re.split(r"[;{}]", text):
        if m := re.search(r"\b(?:struct|class) (?:alignas\(\d+\) )?(\w+)\s*$", statement):
            struct = m[1]
        elif m := re.match(
            r"\s*(?:alignas\(\d+\) )?std::atomic<[\w:\s*]+>\s*([^()]+)$", statement, re.S
        ):
            for name in m[1].split(","):
                field = re.findall(r"\w+", name)[0].rstrip("_")
                found.add(f"{struct}.{field}")
    return found


def documented() -> list[tuple[str, list[str]]]:
    """(Struct.field, the cells of its row); a field may have several."""
    rows: list[tuple[str, list[str]]] = []
    for line in DOC.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+\.\w+)`", cells[0]) if line.startswith("| `") else ():
            rows.append((name, cells))
    return rows


def test_every_shared_atomic_has_its_row() -> None:
    wanted = set().union(*map(atomics, LAYOUT + OWN))
    assert {"Hot.word", "Cold.parts", "Superblock.marks_tail", "Arena.free_map"} <= wanted
    assert "Solo.calls" in wanted
    assert len(wanted) > 50
    assert {name for name, _ in documented()} == wanted


def test_a_row_says_orders_partner_and_cost() -> None:
    for name, cells in documented():
        assert len(cells) == 6, name
        assert cells[1] == "not used in layout 1" or all(cells[1:5]), name


def test_a_field_that_is_said_to_be_unused_is() -> None:
    sources = [p.read_text() for p in (ROOT / "cpp").rglob("*.cpp") if "tests" not in p.parts]
    for name, cells in documented():
        if cells[1] == "not used in layout 1" and not name.startswith(("Tenant", "Event")):
            field = name.split(".")[1]
            used = re.compile(rf"[.>]{field}\.(load|store|fetch_|compare_)")
            assert not any(used.search(t) for t in sources), name


def test_scenarios_and_models_that_it_names_exist() -> None:
    scenarios = (ROOT / "cpp/tests/weak/scenarios.cpp").read_text()
    named = set(re.findall(r'\{"([a-z ,-]+)",\s+run<', scenarios))
    assert len(named) >= 15
    shown = "; ".join(c[5] for _, c in documented())
    for model in re.findall(r"(\w+\.pml)", shown):
        assert (ROOT / "tests/model" / model).exists(), model
    tests = "\n".join(p.read_text() for p in (ROOT / "cpp/tests").glob("*_test.cpp"))
    for suite, test in re.findall(r"\b([A-Z]\w+)\.(\w+)", shown):
        assert re.search(rf"\bTEST(_F)?\({suite}, {test}\)", tests), test
    for scenario in ("publish", "pending", "insert", "summary", "no-cache", "counts", "slices"):
        assert scenario in named and scenario in shown
