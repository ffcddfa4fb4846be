# SPDX-License-Identifier: Apache-2.0
"""The inspector's idea of layout 1 against the C++ structs: offsets, sizes, geometry, hash."""
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kvshm.tools.inspector import counters, dtypes, layout, locks

ROOT = Path(__file__).resolve().parents[2]

RECORDS = {"Superblock": dtypes.SUPERBLOCK, "SlotRecord": dtypes.SLOT, "Hot": dtypes.HOT,
           "Cold": dtypes.COLD, "PolicyTable": dtypes.POLICY, "Geometry": dtypes.GEOMETRY,
           "LeaseLine": dtypes.LEASE, "Ghost": dtypes.GHOST, "ForeignNote": dtypes.FOREIGN,
           "MoverNote": dtypes.MOVER, "Lane": dtypes.LANE, "LaneEntry": dtypes.LANE_ENTRY}
# block_bytes, blocks, page: tiny, odd, more than one region word, huge pages, no data
SHAPES = [(64, 1, 4096), (4096, 5, 4096), (2 << 20, 4097, 4096), (1 << 20, 70000, 2 << 20),
          (0, 300000, 4096), (64, 2100000, 4096), (2 << 20, 16, 4096), (2 << 20, 15, 4096)]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says, by names like Hot.word and Hot (its size)."""
    lines = []
    for struct, dtype in RECORDS.items():
        lines.append(f'out("{struct}", sizeof({struct}));')
        lines += [f'out("{struct}.{f}", offsetof({struct}, {f}));' for f in dtype.names or ()]
        lines += [f'out("{struct}.{f}:size", sizeof({struct}::{f}));' for f in dtype.names or ()]
    for constant in ("MAGIC", "PAGE", "HUGE_PAGE", "SLOTS", "REGION_BLOCKS", "LEASE_LINES",
                     "TOUCH_RING", "HISTOGRAMS", "BUCKETS", "TENANTS", "MARKS", "EVENTS",
                     "STAT_ROOM", "LANES", "LANE_ROOM"):
        cpp = "k" + constant.title().replace("_", "")
        lines.append(f'out("{constant}", {cpp});')
    for i, (block_bytes, blocks, page) in enumerate(SHAPES):
        lines.append(f"Geometry g{i}{{}}; compute_geometry(0, {block_bytes}ull, {blocks}ull, "
                     f"{page}ull, &g{i});")
        lines += [f'out("shape{i}.{f}", g{i}.{f});' for f in layout.Geometry._fields]
    lines.append('out("Queues", sizeof(Queues)); out("Queues.lanes", offsetof(Queues, lanes));')
    lines += ['out("layout_hash", layout_hash());', 'out("kStatCount", kStatCount);',
              'out("life3", life_byte(3));', 'out("device3", device_byte(3));',
              'out("creation", kCreationByte);',
              'out("mover", post_byte(KVSHM_POST_MOVER));']
    if not shutil.which("g++"):
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("facts")
    source = folder / "facts.cpp"
    source.write_text(
        '#include <cstddef>\n#include <cstdio>\n#include "arena/layout.hpp"\n'
        '#include "arena/lock.hpp"\n#include "kvshm.h"\nusing namespace kvshm;\n'
        'static void out(const char* n, unsigned long long v) {\n'
        '  std::printf("%s %llu\\n", n, v);\n}\n'
        "int main() {\n" + "\n".join(lines) + "\n}\n")
    subprocess.run(["g++", "-std=c++20", "-Wno-invalid-offsetof", f"-I{ROOT / 'cpp'}",
                    f"-I{ROOT / 'include'}", source, ROOT / "cpp/arena/layout.cpp", "-o",
                    folder / "facts"], check=True, timeout=100)
    printed = subprocess.run([folder / "facts"], check=True, timeout=10, capture_output=True,
                             text=True).stdout
    return {name: int(value) for name, value in map(str.split, printed.splitlines())}


@pytest.mark.parametrize("struct", RECORDS)
def test_record(struct: str, facts: dict[str, int]) -> None:
    dtype = RECORDS[struct]
    assert dtype.itemsize == facts[struct]
    for name, (kind, offset, *_) in (dtype.fields or {}).items():
        assert (offset, kind.itemsize) == (facts[f"{struct}.{name}"],
                                           facts[f"{struct}.{name}:size"]), name


def test_constants(facts: dict[str, int]) -> None:
    assert {n: getattr(layout, n) for n in facts if n.isupper()} == {
        n: v for n, v in facts.items() if n.isupper()}
    assert layout.layout_hash() == facts["layout_hash"]
    assert len(counters.totals()) == facts["kStatCount"]
    assert (locks.life(3), locks.device(3), locks.CREATION, locks.MOVER) == (
        facts["life3"], facts["device3"], facts["creation"], facts["mover"])
    assert (layout.QUEUES, layout.MOVER) == (facts["Queues"], facts["Queues.lanes"])


@pytest.mark.parametrize("i", range(len(SHAPES)), ids=str)
def test_geometry(i: int, facts: dict[str, int]) -> None:
    block_bytes, blocks, page = SHAPES[i]
    g = layout.geometry(block_bytes, blocks, page)
    assert g is not None
    assert g._asdict() == {f: facts[f"shape{i}.{f}"] for f in g._fields}


def test_geometry_that_cannot_be() -> None:
    assert layout.geometry(63, 1, 4096) is None
    assert layout.geometry(64, 0, 4096) is None
    assert layout.geometry(1 << 40, 1 << 20, 4096) is None
    least = layout.geometry(64, 8, 4096)
    assert least is not None
    assert layout.geometry(64, 8, 4096, least.bytes - 1) is None
    assert layout.geometry(64, 8, 4096, least.bytes + 4096) is not None


def test_metadata_is_within_its_limit() -> None:
    """Per block and fixed, as targeted: 192 bytes and 4 MiB."""
    for block_bytes, blocks, page in SHAPES:
        g = layout.geometry(block_bytes, blocks, page)
        assert g is not None
        assert layout.block_metadata_bytes(g) <= 192 * blocks
        assert layout.fixed_bytes(g) <= 4 << 20
        gap = g.data_off - layout.fixed_bytes(g) - layout.block_metadata_bytes(g)
        assert 0 <= gap < 2 << 20


def test_names_are_those_of_the_core() -> None:
    introspect = pytest.importorskip("kvshm.introspect")
    assert counters.gauges() | counters.totals() == introspect.STAT_TEXTS


def test_scaled_is_exact() -> None:
    from kvshm.tools.inspector.invariants import _scaled

    rng = np.random.default_rng(5)
    x = np.concatenate([rng.integers(0, 1 << 64, 1000, np.uint64, endpoint=False),
                        np.array([0, 1, (1 << 64) - 1, 1 << 63, (1 << 32) - 1], np.uint64)])
    for n in (2, 3, 18, 12345, (1 << 30) + 7, (1 << 32) - 1):
        assert _scaled(x, n).tolist() == [int(v) * n >> 64 for v in x]
