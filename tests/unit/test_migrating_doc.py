# SPDX-License-Identifier: Apache-2.0
"""docs/migrating.md: what it names as ours exists, and its figures are those of its formula."""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvshm.config import options
from kvshm.tools.cli.main import make_parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/migrating.md").read_text()
GIB = 1 << 30


def rows(*heads: str) -> Iterator[list[str]]:
    """Of the tables whose first head is one of these."""
    inside = False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] in heads:
            inside = True
            column = {name: n for n, name in enumerate(cells)}
        elif inside and not cells[0].startswith("-") and not set(cells[0]) <= set("-:"):
            yield [cells[0], cells[column["kvshm"]]] if "kvshm" in column else cells


OURS = [(theirs, name) for theirs, ours in rows("LMCache", "LMCache server", "KVBM", "vLLM", "said")
        for name in re.findall(r"`([^`]+)`", ours) or [ours]]


def verbs() -> dict[str, argparse.ArgumentParser]:
    (found,) = (one for one in make_parser()._actions
                if isinstance(one, argparse._SubParsersAction))
    return dict(found.choices)


def exists(name: str) -> bool:
    if name in {option.name for option in options()}:
        return True
    if name.startswith("kvshm "):
        _, verb, *flags = name.split()
        parser = verbs().get(verb)
        return parser is not None and all(flag in parser._option_string_actions for flag in flags)
    if name.startswith("kvshm."):
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module) is None:
            return False
        return (hasattr(importlib.import_module(module), attribute)
                or importlib.util.find_spec(name) is not None)
    if name.startswith("kvshm_"):
        return any(re.search(rf"\b{name}\(", header.read_text())
                   for header in (ROOT / "include").glob("*.h"))
    return name == "—"


def test_the_tables_were_found() -> None:
    assert len(OURS) > 80 and {"size", "tier", "kvshm warmup"} <= {name for _, name in OURS}
    assert not exists("tier_sizes") and not exists("kvshm agent --policies")
    assert not exists("kvshm.nothing") and not exists("kvshm nothing")
    assert not exists("kvshm_gds_nothing")


@pytest.mark.parametrize("name", sorted({name for _, name in OURS}))
def test_what_is_named_exists(name: str) -> None:
    assert exists(name), [theirs for theirs, ours in OURS if ours == name]


def test_every_option_that_shapes_the_cache_is_mapped() -> None:
    """What has a counterpart elsewhere, and would be looked for."""
    named = {name for _, name in OURS}
    assert {"size", "tier", "tier_size", "tier_admit", "tier_direct", "huge", "numa", "pin", "load",
            "read", "write", "min_tokens", "save_decode", "priority", "quota", "namespace",
            "events", "trace", "label"} <= named


def model_rows() -> Iterator[tuple[list[str], int]]:
    """And the bytes of a token, in two bytes an element."""
    for row in rows("model"):
        layers, heads, head = map(int, row[1:4])
        yield row, 2 * layers * heads * head * 2
    for row in rows("model with MLA"):
        layers, latent, rope = map(int, row[1:4])
        yield row, layers * (latent + rope) * 2


MODELS = list(model_rows())


def test_models() -> None:
    assert len(MODELS) >= 15


@pytest.mark.parametrize(("row", "token"), MODELS, ids=[row[0] for row, _ in MODELS])
def test_a_model(row: list[str], token: int) -> None:
    assert float(row[4]) * 1024 == token
    assert float(row[5].removesuffix(" MiB")) * (1 << 20) == 16 * token
    assert int(row[6].replace(",", "")) == 64 * GIB // token
