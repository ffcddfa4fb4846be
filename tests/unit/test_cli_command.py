# SPDX-License-Identifier: Apache-2.0
"""The command itself: errors, exit codes, pipes, colour, completion, start-up, help."""
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import kvshm
import pytest
from kvshm.tools.cli import failures, main, text
from support.cli import kvshm_cli, read_terminal, spawn_cli


@pytest.fixture
def arena(arena_name: str) -> str:
    kvshm.Arena.create(arena_name, blocks=8, block_bytes=64, pin="off", helper=False).close()
    return arena_name


@pytest.mark.parametrize("argv, code, words", [
    (["stat", "not-there"], 3, "kvshm: not-there: there is no /dev/shm/kvshm.not-there: "),
    (["frobnicate"], 2, "kvshm: argument COMMAND: invalid choice: 'frobnicate'"),
    ([], 2, "kvshm: the following arguments are required: COMMAND"),
    (["rm"], 2, "kvshm: the following arguments are required: ARENA: `kvshm rm --help`"),
    (["stat", "../../etc/passwd"], 2, "kvshm: '../../etc/passwd' cannot be an arena's name"),
    (["stat", "--interval", "0", "x"], 2, "argument --interval: wanted a positive number"),
    (["stat", "--interval", "1", "--count", "0", "x"], 2, "argument --count: wanted 1 or more"),
    (["list", "--dir", "/no/such/dir"], 2, "kvshm: /no/such/dir: No such file or directory"),
])
def test_errors_are_one_line(argv: list[str], code: int, words: str) -> None:
    result = kvshm_cli(*argv)
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert result.err.count("\n") == 1


def test_count_without_interval(arena: str) -> None:
    assert kvshm_cli("stat", "--count", "3", arena).code == 2


def test_the_only_arena_may_be_left_out(arena_name: str, tmp_path: Path) -> None:
    none = kvshm_cli("stat", "--dir", tmp_path)
    assert (none.code, "no arena in" in none.err) == (3, True)
    for i in range(2):
        kvshm.Arena.create(f"{arena_name}-{i}", dir=str(tmp_path), blocks=4, block_bytes=64,
                           pin="off", helper=False).close()
        result = kvshm_cli("stat", "--dir", tmp_path)
        if i == 0:
            assert result.code == 0 and f"name {arena_name}-0" in " ".join(result.out.split())
    assert result.code == 2
    assert result.err.endswith(f"name one of {arena_name}-0, {arena_name}-1\n")


def test_the_object_name_will_do_too(arena: str) -> None:
    assert kvshm_cli("verify", f"kvshm.{arena}").code == 0


def test_permission(arena: str) -> None:
    """A process without privileges looks at an arena of root's."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become nobody")
    # Everything is imported before: nobody may not be able to read this Python.
    code = ("import os, sys\n"
            "from kvshm.tools.cli.main import main\n"
            "main(['list', '-q']); main(['stat', '-q', sys.argv[1]])\n"
            "import kvshm.tools.cli.remove\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "print(main(['stat', sys.argv[1]])); print(main(['rm', '--force', sys.argv[1]]))\n"
            "main(['list'])")
    done = subprocess.run([sys.executable, "-c", code, arena], capture_output=True, text=True,
                          timeout=60)
    assert done.stdout.split()[:2] == ["4", "4"], done.stderr
    assert done.stderr.splitlines()[0] == \
        f"kvshm: {arena}: belongs to uid 0: run it as that user, or as root"
    assert f"{arena} " in done.stdout and "no permission (belongs to uid 0)" in done.stdout


def test_quiet(arena: str) -> None:
    for verb in ("list", "stat", "verify", "reap"):
        argv = [verb, "-q"] if verb == "list" else [verb, "-q", arena]
        assert kvshm_cli(*argv) == (0, "", "")


def test_closed_pipe_is_silent(arena: str) -> None:
    """Its reader gone before the first byte: no traceback, no message."""
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen([sys.executable, "-m", "kvshm.tools.cli", "stat", arena], stdout=write,
                          stderr=subprocess.PIPE) as process:
        os.close(write)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (failures.PIPE_CLOSED, b"")


def test_interrupted(arena: str) -> None:
    process = spawn_cli("stat", "--interval", "0.05", arena)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (failures.INTERRUPTED, "")


def on_a_terminal(arena: str, *more: str, **env: str) -> str:
    """What `kvshm list` writes to a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "kvshm.tools.cli", "list", *more],
                               stdout=slave, env={**os.environ, "TERM": "xterm", **env})
    os.close(slave)
    out = read_terminal(master)
    assert process.wait(60) == 0
    assert arena.encode() in out
    return out.decode()


def test_colour_on_a_terminal_only(arena: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in on_a_terminal(arena)
    assert "\x1b[" not in on_a_terminal(arena, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(arena, "--no-color")
    assert "\x1b[" not in kvshm_cli("list").out


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    assert text.table(["A", "B"], [["1", "x"]], color=True) == "A  B\n1  x"


def test_labels_cannot_move_the_cursor() -> None:
    assert text.clean("a\x1b[2Jb\nc\u202e") == "a?[2Jb?c?"


@pytest.mark.parametrize("number, words", [
    (0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"),
    (64 << 30, "64 GiB"), (1023 << 20, "0.999 GiB"), (5 << 50, "5 PiB"), (5000 << 50, "5e+03 PiB")])
def test_size(number: int, words: str) -> None:
    assert text.size(number) == words


@pytest.mark.parametrize("seconds, words", [
    (0.5, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"),
    (200000, "2 d")])
def test_age(seconds: float, words: str) -> None:
    assert text.age(seconds) == words


def test_help_names_verbs_and_exit_codes() -> None:
    result = kvshm_cli("--help")
    assert result.code == 0
    for word in ("list", "stat", "verify", "reap", "rm", "doctor", "exit codes", "130"):
        assert re.search(rf"\b{word}\b", result.out), word


def test_version() -> None:
    result = kvshm_cli("-V")
    assert re.fullmatch(r"kvshm \d+\.\d+\.\d+\n", result.out)


def test_completion_of_verbs_and_arenas(arena: str) -> None:
    pytest.importorskip("shtab")
    script = kvshm_cli("--print-completion", "bash").out
    ask = ('source /dev/stdin; COMP_WORDS=(kvshm {}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); '
           '_shtab_kvshm; printf "%s\\n" "${{COMPREPLY[@]}}"')
    for line, expected in (("ver", "verify"), (f"stat {arena[:4]}", arena)):
        found = subprocess.run(["bash", "-c", ask.format(line)], input=script, text=True,
                               capture_output=True, timeout=30).stdout.split()
        assert expected in found
    zsh = kvshm_cli("--print-completion", "zsh").out
    assert "_kvshm_arenas" in zsh and zsh.startswith("#compdef kvshm")


def test_completion_without_shtab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    result = kvshm_cli("--print-completion", "bash")
    assert result.code == 2 and "shtab" in result.err


def test_the_command_loads_nothing_heavy() -> None:
    """Help, errors and completion must not wait for numpy, rich or the compiled core."""
    code = ("import importlib.machinery, importlib.util, sys\n"
            # The package without its __init__, which is not the command's to keep light.
            "spec = importlib.util.find_spec('kvshm')\n"
            "sys.modules['kvshm'] = importlib.util.module_from_spec(spec)\n"
            "from kvshm.tools.cli.main import make_parser\n"
            "make_parser().format_help()\n"
            "heavy = {'numpy', 'rich', 'shtab', 'posix_ipc', 'kvshm.core', 'json', 'asyncio'}\n"
            "print(heavy & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stdout + done.stderr


def test_doctor(tmp_path: Path) -> None:
    result = kvshm_cli("doctor", "--json", "--tier-dir", tmp_path)
    assert result.code in (0, 1)
    assert result.json["kind"] == "doctor" and result.json["schema"] == 1
    assert (result.code == 1) == (result.json["failed"] > 0)
    quiet = kvshm_cli("doctor", "-q", "--tier-dir", tmp_path)
    assert (quiet.code, quiet.out) == (result.code, "")


def test_core_errors_have_their_exit_codes() -> None:
    for error, code in ((kvshm.ArenaNotFound("x"), 3), (kvshm.PermissionDenied("x"), 4),
                        (kvshm.ArenaDamaged("x"), 5), (kvshm.LayoutMismatch("x"), 5),
                        (kvshm.ArenaNotReady("x"), 6), (kvshm.NoSlot("x"), 6),
                        (kvshm.InvalidArgument("x"), 2)):
        assert failures.from_core(error, "a").code == code
    assert str(failures.from_core(kvshm.NoSlot("all taken"), "a")) == "kvshm: a: all taken"


def test_main_is_the_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = (e for e in entry_points(group="console_scripts") if e.name == "kvshm")
    assert found.value == "kvshm.tools.cli.main:main"
    assert callable(main.main)
