#!/usr/bin/env python3
"""Marks tie a step of a model to its line of code: `M:fill.13` stands at both, and in the table of
docs/protocol.md.  marks.toml keeps a hash of both expressions, so that neither changes alone.

    marks.py              what is wrong, exit 1 if anything is
    marks.py --show M     both sides of a mark, as they are hashed
    marks.py --bless      the two sides were compared: write their hashes
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOC = ROOT / "docs" / "protocol.md"
HASHES = HERE / "marks.toml"
MARK = re.compile(r"M:([a-z]+\.\d+)")
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<hash>^[ \t]*\#(?:\\\n|[^\n])*)|"(?:\\.|[^"\\])*"
    |'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d[\w'.]*|<<=|>>=|->|::|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|>>
    |[^\s\w]""",
    re.X | re.S | re.M,
)
Sides = dict[str, list[str]]  # mark -> "file: expression", in the order of files and lines


def code_files(root: Path) -> list[Path]:
    found = [p for pattern in ("*.cpp", "*.hpp") for p in (root / "cpp").rglob(pattern)]
    return sorted(p for p in found if {"tests", "bench"}.isdisjoint(p.relative_to(root).parts))


def model_files(models: Path) -> list[Path]:
    return sorted([*models.glob("*.pml"), *models.glob("*.inc")])


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, token); layout and line breaks are gone."""
    return [
        ("comment" if m["comment"] else "hash" if m["hash"] else "code", m[0])
        for m in TOKEN.finditer(text)
    ]


def _statement(tokens: list[tuple[str, str]]) -> list[str]:
    """The first statement, or the head of it (if, while, switch) where it opens a block."""
    out: list[str] = []
    nested, braces = 0, 0
    for kind, token in tokens:
        if kind != "code":
            continue
        if token == "{" and not nested and not braces and out[-1:] in ([")"], ["else"]):
            break
        nested += (token in "([") - (token in ")]")
        braces += (token == "{") - (token == "}")
        if braces < 0:
            break
        out.append(token)
        if token == ";" and not nested and not braces:
            if out[0] == "KVSHM_STEP":  # a step point is not the step
                out = []
                continue
            break
    return out


def code_sides(root: Path = ROOT) -> Sides:
    """A mark's comment stands alone above its statement."""
    sides: Sides = {}
    for path in code_files(root):
        text = path.read_text()
        if "M:" not in text:
            continue
        tokens = _tokens(text)
        for at, (kind, token) in enumerate(tokens):
            if kind == "comment":
                statement = " ".join(_statement(tokens[at + 1 :])) if MARK.search(token) else ""
                for mark in MARK.findall(token):
                    sides.setdefault(mark, []).append(f"{path.relative_to(root)}: {statement}")
    return sides


def _macros(models: Path, path: Path) -> dict[str, list[str]]:
    """Name -> its definitions (one for each control), of the file and of what it includes."""
    text = path.read_text()
    found: dict[str, list[str]] = {}
    for name in re.findall(r'^#include "(.*)"', text, re.M):
        found |= _macros(models, models / name)
    for m in re.finditer(r"^#define (\w+)((?:\\\n|.)*)", text, re.M):
        body = [t for kind, t in _tokens(m[2].replace("\\\n", " ")) if kind == "code"]
        if len(body) > 1 or body and not body[0].isdigit():  # else a bound or a name
            found.setdefault(m[1], []).append(" ".join(body))
    return found


def _closed(code: str) -> bool:
    pairs = (("(", ")"), ("do", "od"), ("if", "fi"))
    words = re.findall(r"[()]|\b(?:do|od|if|fi)\b", code)
    return all(words.count(a) >= words.count(b) for a, b in pairs)


def _step(lines: list[str], at: int) -> str:
    """The step that ends on line `at`: further lines upwards until it is whole."""
    code = lines[at]
    while at and not _closed(code) or not code.strip():
        at -= 1
        code = lines[at] + "\n" + code
    return " ".join(t for kind, t in _tokens(code) if kind == "code")


def model_sides(models: Path = HERE) -> Sides:
    """A step with the macros that it uses, those of its controls too."""
    sides: Sides = {}
    for path in model_files(models):
        bare = re.sub(
            r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text(), flags=re.S
        )
        macros, lines = _macros(models, path), bare.splitlines()
        for at, line in enumerate(path.read_text().splitlines()):
            for mark in MARK.findall(line):
                step = _step(lines, at)
                used, todo = {}, re.findall(r"\w+", step)
                while todo:
                    name = todo.pop()
                    if name in macros and name not in used:
                        used[name] = macros[name]
                        todo += re.findall(r"\w+", " ".join(macros[name]))
                text = [f"{n} = {b}" for n in sorted(used) for b in used[n]]
                sides.setdefault(mark, []).append("\n  ".join([f"{path.name}: {step}", *text]))
    return sides


def doc_rows(doc: Path = DOC) -> Iterator[tuple[list[str], list[str]]]:
    """The rows of the table of marks: (marks, the other cells)."""
    for line in doc.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| M:"):
            yield MARK.findall(cells[0]), cells[1:]


def doc_marks(doc: Path = DOC) -> tuple[set[str], set[str]]:
    """Those with a line of code, and those that are said to have none."""
    with_code: set[str] = set()
    without: set[str] = set()
    for marks, cells in doc_rows(doc):
        (with_code if len(cells) == 4 else without).update(marks)
    return with_code, without


def digest(side: list[str]) -> str:
    return hashlib.sha256("\n".join(side).encode()).hexdigest()[:16]


def read_hashes(path: Path = HASHES) -> dict[str, dict[str, str]]:
    return tomllib.loads(path.read_text()) if path.exists() else {}


def write_hashes(code: Sides, model: Sides, path: Path = HASHES) -> None:
    key = lambda m: (m.split(".")[0], int(m.split(".")[1]))  # noqa: E731
    lines = [
        f'"{m}" = {{ code = "{digest(code[m]) if m in code else ""}", '
        f'model = "{digest(model[m])}" }}'
        for m in sorted(model, key=key)
    ]
    head = "# Written by tests/model/marks.py --bless, after both sides were compared.\n"
    path.write_text(head + "\n".join(lines) + "\n")


def problems(code: Sides, model: Sides, docs: tuple[set[str], set[str]],
             hashes: dict[str, dict[str, str]]) -> list[str]:
    """Everything in which code, models, docs and hashes differ."""
    with_code, without = docs
    out = [f"{m}: in cpp/, not in a model" for m in sorted(set(code) - set(model))]
    out += [f"{m}: in a model, neither in cpp/ nor among the marks without a line of code"
            for m in sorted(set(model) - set(code) - without)]
    out += [f"{m}: said to have no line of code, but has one" for m in sorted(without & set(code))]
    out += [f"{m}: in cpp/, not in docs/protocol.md" for m in sorted(set(code) - with_code)]
    out += [f"{m}: in docs/protocol.md, not in cpp/" for m in sorted(with_code - set(code))]
    out += [f"{m}: in docs/protocol.md, in no model"
            for m in sorted((with_code | without) - set(model))]
    out += [f"{m}: no statement follows the mark in cpp/"
            for m in sorted(code) if any(s.endswith(": ") for s in code[m])]
    out += [f"{m}: in {len(model[m])} places of the models"
            for m in sorted(model) if len(model[m]) > 1]
    for m in sorted(set(model) | set(hashes)):
        now = {"code": digest(code[m]) if m in code else "",
               "model": digest(model[m]) if m in model else ""}
        for side in now:
            if hashes.get(m, {}).get(side) != now[side]:
                out.append(f"{m}: its {side} has changed; compare both sides (marks.py --show {m}),"
                           " then marks.py --bless")
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--bless", action="store_true", help="write the hashes of both sides")
    what.add_argument("--show", metavar="MARK", help="both sides of a mark, as hashed")
    args = parser.parse_args(argv)
    code, model = code_sides(), model_sides()
    if args.show:
        mark = args.show.removeprefix("M:")
        for side in (*code.get(mark, ["no line of code"]), *model.get(mark, ["no model"])):
            print(side)
        return 0
    found = problems(code, model, doc_marks(), read_hashes())
    if args.bless:
        write_hashes(code, model)
        found = problems(code, model, doc_marks(), read_hashes())
    print(*found, sep="\n" if found else "")
    print(f"{len(model)} marks, {len(found)} problems", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
