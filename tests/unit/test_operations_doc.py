# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md and examples/service: commands, options and files that are named exist, the
unit is one that systemd takes, and starts what the parser takes."""
from __future__ import annotations

import argparse
import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from kvshm.config import options
from kvshm.tools.cli.main import make_parser
from kvshm.tools.doctor import Options
from kvshm.tools.doctor.run import PROBES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operations.md").read_text()
SERVICE = ROOT / "examples/service"
UNIT = SERVICE / "kvshm-agent@.service"


def commands() -> list[str]:
    """All that begin with kvshm, in code and between backticks, without what explains them."""
    code = [line.split("#")[0] for line in TEXT.splitlines() if line.startswith("    ")]
    found = [one for line in code for one in re.split(r"&&|\|", line)]
    found += re.findall(r"`([^`\n]+)`", TEXT)
    return sorted({one.strip() for one in found if one.strip().startswith("kvshm ")})


def verb_of(verb: str) -> argparse.ArgumentParser | None:
    (found,) = (one for one in make_parser()._actions
                if isinstance(one, argparse._SubParsersAction))
    parser: argparse.ArgumentParser | None = found.choices.get(verb)
    return parser


@pytest.mark.parametrize("command", commands())
def test_a_command_exists(command: str) -> None:
    _, verb, *words = command.split()
    parser = verb_of(verb)
    assert parser is not None, verb
    for word in words:
        if word.startswith("-"):
            assert word in parser._option_string_actions, word


def test_there_are_commands() -> None:
    assert len(commands()) > 15


def test_lines_of_the_doctor() -> None:
    told = set(re.findall(r"`doctor`: \*(\w+)\*", TEXT))
    assert told and told <= {probe(Options()).name for probe in PROBES}


def test_links_and_counters() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
    headers = "".join(one.read_text() for one in (ROOT / "include").glob("*.h"))
    for name in re.findall(r"`([a-z_]+_total)`", TEXT):
        assert name in headers, name


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment]
    found.read(UNIT)
    return found


def agent_options() -> list[str]:
    lines = (SERVICE / "llama.env").read_text().splitlines()
    (given,) = (line.partition("=")[2] for line in lines if line.startswith("AGENT_OPTIONS="))
    return shlex.split(given)


def parse(words: list[str]) -> argparse.Namespace:
    return make_parser().parse_args(words)


def test_what_the_unit_starts() -> None:
    service = unit()["Service"]
    assert service["EnvironmentFile"] == "/etc/kvshm/%i.env"
    words = shlex.split(service["ExecStart"].replace("%i", "llama"))
    assert Path(words[0]).name == "kvshm" and words[-1] == "$AGENT_OPTIONS"
    # Codes that trying again does not mend; 3, no arena yet, is none of them.
    assert service["RestartPreventExitStatus"].split() == ["2", "4", "5"]
    for line in re.findall(r"^\| `([A-Z]\w+)=", TEXT, re.M):
        assert line in service, line
    args = parse([*words[1:-1], *agent_options()])
    assert (args.verb, args.arena) == ("agent", "llama")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a program that is there; all else as it stands."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / "kvshm-agent@llama.service"

    def verify(text: str) -> str:
        copy.write_text(text)
        done = subprocess.run([tool, "verify", "--man=no", str(copy)], text=True, timeout=60,
                              capture_output=True)
        return "\n".join(line for line in (done.stdout + done.stderr).splitlines()
                         if copy.name in line)
    text = UNIT.read_text().replace("/opt/inference/bin/kvshm", "/bin/true")
    if not verify(text.replace("Restart=always", "Restart=sometimes")):
        pytest.skip("systemd-analyze cannot verify units here")
    assert verify(text) == ""


def test_compose() -> None:
    text = (SERVICE / "compose.yaml").read_text()
    (extra,) = re.findall(r'"kv_connector_extra_config":\s*\{(.*?)\}\}', text, re.S)
    names = {option.name for option in options()}
    given = re.findall(r'"(\w+)":', extra)
    assert len(given) == 4 and set(given) <= names
    (command,) = re.findall(r"command: \[(kvshm.*)\]", text)
    args = parse([one.strip() for one in command.split(",")][1:])
    assert (args.verb, args.arena) == ("agent", "llama")
