"""Code, models, docs and the kept hashes name the same marks, and neither side changed alone."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import marks  # noqa: E402
from marks import (  # noqa: E402
    HERE, ROOT, code_sides, doc_marks, doc_rows, model_sides, read_hashes,
)


def test_code_models_docs_and_hashes_agree() -> None:
    assert not marks.problems(code_sides(), model_sides(), doc_marks(), read_hashes())


def test_a_mark_stands_alone_above_its_statement() -> None:
    for path in marks.code_files(ROOT):
        for n, line in enumerate(path.read_text().splitlines(), 1):
            assert not marks.MARK.search(line) or re.match(r"\s*// M:", line), f"{path}:{n}"


def test_the_table_leads_from_a_mark_to_its_file_model_and_tests() -> None:
    code, model = code_sides(), model_sides()
    gtests = set()
    for path in (ROOT / "cpp" / "tests").glob("*.cpp"):
        gtests |= {f"{a}.{b}" for a, b in re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\)",
                                                     path.read_text(), re.M)}
    rows = list(doc_rows())
    assert max(Counter(m for ms, _ in rows for m in ms).values()) == 1
    for names, cells in rows:
        if len(cells) != 4:
            assert len(cells) == 2 and all(cells), names
            continue
        files = {s.split(":")[0].removeprefix("cpp/") for m in names for s in code[m]}
        assert set(cells[1].split(", ")) == files, names
        models = {s.split(":")[0].rsplit(".", 1)[0] for m in names for s in model[m]}
        assert set(cells[2].split(", ")) == models, names
        tests = re.findall(r"`([^`]+)`", cells[3])
        assert tests, names
        for test in tests:
            path, _, function = test.partition("::")
            if function:
                assert f"def {function}(" in (ROOT / path).read_text(), test
            else:
                assert test in gtests, test


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what carries marks."""
    shutil.copytree(ROOT / "cpp", tmp_path / "cpp", ignore=shutil.ignore_patterns("tests", "bench"))
    (tmp_path / "tests" / "model").mkdir(parents=True)
    for path in marks.model_files(HERE):
        shutil.copy(path, tmp_path / "tests" / "model")
    return tmp_path


def found(tree: Path) -> list[str]:
    code, model = code_sides(tree), model_sides(tree / "tests" / "model")
    return marks.problems(code, model, doc_marks(), read_hashes())


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def under(path: Path, mark: str, pattern: str, new: str) -> None:
    """Changes what first matches below a mark, whatever the code is by now."""
    text = path.read_text()
    head, found, rest = text.partition(f"M:{mark} ")
    changed, n = re.subn(pattern, new, rest, count=1)
    assert found and n == 1, mark
    path.write_text(head + found + changed)


def test_another_order_in_the_code_is_noticed(tree: Path) -> None:
    under(tree / "cpp/blocks/counts.cpp", "fill.13", r"std::memory_order_\w+",
          "std::memory_order_relaxed")
    assert {p.split(":")[0] for p in found(tree)} == {
        "fill.13", "core.12", "index.12", "dup.4", "aon.10", "wait.5"}


def test_another_step_in_a_model_is_noticed(tree: Path) -> None:
    edit(tree / "tests/model/pending.pml", "atomic { h = seq };                                   "
         "       /* M:pending.4", "atomic { h = seq + 1 }; /* M:pending.4")
    assert [p.split(";")[0] for p in found(tree)] == ["pending.4: its model has changed"]


def test_another_macro_behind_a_step_is_noticed(tree: Path) -> None:
    edit(tree / "tests/model/eventcount.pml", "#ifndef NW", "#define STEP2(x) x\n#ifndef NW")
    assert not found(tree)
    edit(tree / "tests/model/pending.pml", "#define CLOSE ZERO; ", "#define CLOSE ")
    assert [p.split(":")[0] for p in found(tree)] == ["pending.3"]


def test_a_mark_on_one_side_only_is_noticed(tree: Path) -> None:
    edit(tree / "cpp/blocks/holds.cpp", "// M:dup.12", "// M:dup.77")
    assert any(p.startswith("dup.77: in cpp/, not in a model") for p in found(tree))
    edit(tree / "tests/model/slots.pml", "/* M:slots.10 ", "/* ")
    assert any(p.startswith("slots.10: in cpp/, not in a model") for p in found(tree))


def test_layout_comments_and_step_points_do_not_matter(tree: Path) -> None:
    close = tree / "cpp/blocks/close.cpp"
    under(close, "core.7", r"h\.store_key\(\{\}\);",
          'h\n   .store_key(  // a comment\n{});\n  neighbour();')
    under(close, "fill.18", r"\n", '\n  KVSHM_STEP("close.before");\n')
    assert not found(tree)
