"""Run one row of the model table: spin, gcc, the search, and the verdict.

A row is checked exhaustively, or, where it says `compact`, by hash compaction: states are told
apart by a hash, so that some are missed (1 in 850 of a million, measured); its verdict says so.
A control must fail in the check that the row names; failing anywhere else, or passing, is not as
expected.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILE_SECONDS = 120
MAX_MEMORY_MB = 5000  # of one row; two rows run at a time
SOURCES = ("*.pml", "*.inc")
NEEDED = ("spin", "gcc")


@dataclass(frozen=True)
class Row:
    """One line of table.toml."""

    name: str
    file: str
    defines: tuple[str, ...] = ()
    fails: str = ""  # "" = must pass; else the CHECK, or "invalid end state", that must fail
    control: str = ""  # what the control is called in the protocol
    full: bool = False  # only in the full set
    seconds: int = 100
    memory_mb: int = 3000
    heavy: bool = False  # millions of states: worth an optimised search
    collapse: bool = False  # less memory, slower
    compact: bool = False  # hash compaction: far less memory; may miss a state

    @property
    def expect(self) -> str:
        return "bad" if self.fails else "ok"


@dataclass
class Result:
    """What came of a row."""

    row: Row
    got: str  # ok, bad, or open: a limit was hit, nothing is proved
    why: str = ""  # the check that failed, or the limit
    states: int = 0
    depth: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    unreached: frozenset[str] = field(default_factory=frozenset)  # marks no state came by
    trail: str = ""

    @property
    def as_expected(self) -> bool:
        return self.got == self.row.expect and (self.got == "ok" or self.why == self.row.fails)

    def to_dict(self) -> dict[str, object]:
        out = {**asdict(self.row), "expect": self.row.expect, "as_expected": self.as_expected}
        out |= {k: getattr(self, k) for k in ("got", "why", "states", "depth")}
        out |= {"search_seconds": self.seconds, "compile_seconds": self.compile_seconds}
        return out


def load_table(path: Path = HERE / "table.toml") -> tuple[list[Row], list[str]]:
    """Rows, and the names of the controls that must be among them."""
    data = tomllib.loads(path.read_text())
    rows = [Row(**{**r, "defines": tuple(r.get("defines", ()))}) for r in data["row"]]
    if len({r.name for r in rows}) != len(rows):
        raise ValueError("two rows of the table have one name")
    if any(r.memory_mb > MAX_MEMORY_MB for r in rows):
        raise ValueError(f"a row may use {MAX_MEMORY_MB} MB at most")
    return rows, list(data["controls"])


def missing_tools() -> list[str]:
    return [t for t in NEEDED if shutil.which(t) is None]


def check(row: Row, want_trail: bool = False) -> Result:
    """Search all states of one row, in a directory of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvshm-model-") as name:
        work = Path(name)
        for pattern in SOURCES:
            for source in HERE.glob(pattern):
                shutil.copy(source, work)
        started = time.monotonic()
        _compile(row, work)
        compiled = time.monotonic()
        result = _search(row, work)
        result.compile_seconds = round(compiled - started, 2)
        if result.got == "ok":
            result.unreached = _unreached(row, work)
        if want_trail and result.got == "bad":
            result.trail = _trail(row, work)
        return result


def _defines(row: Row) -> list[str]:
    return [f"-D{d}" for d in row.defines]


def _run(argv: list[str], work: Path, seconds: float, memory_mb: int = 0) -> tuple[int, str]:
    def limit() -> None:
        if memory_mb:
            size = (memory_mb + 600) << 20
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

    done = subprocess.run(
        argv, cwd=work, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", preexec_fn=limit, check=False,
    )
    return done.returncode, done.stdout


def _compile(row: Row, work: Path) -> None:
    rc, out = _run(["spin", "-a", *_defines(row), row.file], work, COMPILE_SECONDS)
    if rc or "Error" in out:
        raise RuntimeError(f"{row.name}: spin: {out.strip()[:500]}")
    level = "-O2" if row.full else "-O1" if row.heavy else "-O0"  # gcc costs more than it saves
    flags = [level, "-w", "-DSAFETY", "-DVECTORSZ=2048"]
    flags += [f"-DMEMLIM={row.memory_mb}", *(["-DCOLLAPSE"] if row.collapse else []),
              *(["-DHC4"] if row.compact else [])]
    rc, out = _run(["gcc", *flags, "-o", "pan", "pan.c"], work, COMPILE_SECONDS)
    if rc:
        raise RuntimeError(f"{row.name}: gcc: {out.strip()[:500]}")


def _search(row: Row, work: Path) -> Result:
    started = time.monotonic()
    try:
        rc, out = _run(["./pan", "-m600000"], work, row.seconds, row.memory_mb)
    except subprocess.TimeoutExpired:
        return Result(row, "open", f"more than {row.seconds} s", seconds=float(row.seconds))
    (work / "pan.out").write_text(out)
    result = Result(row, "open", "no verdict", seconds=round(time.monotonic() - started, 2))
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"(\d+) states, stored", out)
    depth = re.search(r"depth reached (\d+)", out)
    result.states = int(states[1]) if states else 0
    result.depth = int(depth[1]) if depth else 0
    if "max search depth too small" in out or "Search not completed" in out and errors is None:
        result.why = "depth or memory limit"
    elif "pan: reached -DMEMLIM" in out or "out of memory" in out:
        result.why = f"more than {row.memory_mb} MB"
    elif errors and errors[1] == "0" and rc == 0:
        result.got, result.why = "ok", "by hash compaction" if row.compact else ""
    elif errors:
        result.got, result.why = "bad", _failed_check(out)
    return result


def _failed_check(out: str) -> str:
    """CHECK(name, c) is assert((c) || name): pan prints the name last."""
    named = re.search(r"assertion violated .*\|\|(\w+)\)+ \(at depth", out)
    if named:
        return named[1]
    other = re.search(r"pan:\d+: ([a-z ]+)", out)
    return other[1].strip() if other else "unknown"


def _unreached(row: Row, work: Path) -> frozenset[str]:
    """Marks of steps none of whose states the search came by.

    pan lists the states it did not reach, but not all that lie behind those: they are found by
    walking its table of transitions from each process's first state.
    """
    _, table = _run(["./pan", "-d"], work, COMPILE_SECONDS)
    missed: set[tuple[str, str]] = set()
    process = ""
    for line in (work / "pan.out").read_text().splitlines():
        if m := re.match(r"unreached in (?:proctype )?(\w+)", line):
            process = m[1]
        elif m := re.match(r"\s+[\w.]+:\d+, state (\d+),", line):
            missed.add((process, m[1]))
    start: set[tuple[str, str]] = set()
    follows: dict[tuple[str, str], set[tuple[str, str]]] = {}
    every: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for line in table.splitlines():
        if m := re.match(r"(?:proctype|init|never)\b ?(\w*)", line):
            process = m[1] or "init"
        elif m := re.match(
            r"\s*state\s+(\d+) .*?-> state\s+(\d+).*?([\w.]+\.(?:pml|inc)):(\d+)", line
        ):
            state = (process, m[1])
            if not any(p == process for p, _ in start):
                start.add(state)
            follows.setdefault(state, set()).add((process, m[2]))
            every.setdefault((m[3], m[4]), set()).add(state)
    came_by, todo = set(), [s for s in start if s not in missed]
    while todo:
        state = todo.pop()
        came_by.add(state)
        todo += [s for s in follows.get(state, ()) if s not in came_by and s not in missed]
    marks = marks_of(work / row.file)
    reached: set[str] = set()
    for number, names in marks.items():
        # a step of several lines counts at its first line
        lines = [(row.file, str(n)) for n in range(number, number - 4, -1)]
        if any(every[x] & came_by for x in [x for x in lines if x in every][:1]):
            reached |= set(names)
    return frozenset({m for ms in marks.values() for m in ms} - reached)


def marks_of(source: Path) -> dict[int, list[str]]:
    """Line number -> marks on it."""
    lines = source.read_text().splitlines()
    found = {n: re.findall(r"M:([a-z]+\.\d+)", line) for n, line in enumerate(lines, 1)}
    return {n: marks for n, marks in found.items() if marks}


def _trail(row: Row, work: Path) -> str:
    """The failing run, one line a step, with the source line in place of spin's own text."""
    _, out = _run(["spin", "-t", "-p", *_defines(row), row.file], work, COMPILE_SECONDS)
    text: dict[str, list[str]] = {}
    lines, last = [], ""
    for line in out.splitlines():
        m = re.match(r"\s*\d+:\s+proc\s+(\d+) \((\S+?):\d+\) ([\w.]+):(\d+).*?\[(.*)\]", line)
        if not m:
            if "assertion" in line or "invalid" in line:
                lines.append(line.strip())
            continue
        source = text.setdefault(m[3], (work / m[3]).read_text().splitlines())
        where = f"{m[1]} {m[2]:10} {m[3]}:{m[4]:4}"
        if "kills = (kills+1)" in m[5]:
            lines.append(f"{where} *** killed before: {source[int(m[4]) - 1].strip()}")
        elif where != last:
            lines.append(f"{where} {source[int(m[4]) - 1].strip()}")
        last = where
    return "\n".join(lines)
