# SPDX-License-Identifier: Apache-2.0
"""kvshm.Config: each option from each source, and what is refused (S79)."""
from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvshm
import pytest
from kvshm.config import ELSEWHERE, options, table
from kvshm.options import show_size

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
# name, text as the environment has it, value as JSON has it, what both become; not the default
GOOD: list[tuple[str, str, Any, Any]] = [
    ("name", "team-a", "team-a", "team-a"),
    ("size", "3GiB", 3 * GIB, 3 * GIB),
    ("dir", "/mnt/huge", "/mnt/huge", "/mnt/huge"),
    ("namespace", "prod", "prod", "prod"),
    ("weights", "sha256:12ab", "sha256:12ab", "sha256:12ab"),
    ("weights_check", "full", "full", "full"),
    ("load", "async", "async", "async"),
    ("read", "no", False, False),
    ("write", "FALSE", False, False),
    ("save_decode", "0", False, False),
    ("min_tokens", "256", 256, 256),
    ("timeout", "2.5", 2.5, 2.5),
    ("load_timeout", "5", 5, 5.0),
    ("priority", "70", 70, 70),
    ("quota", "1GiB", "1GiB", GIB),
    ("pin", "require", "require", "require"),
    ("huge", "off", "off", "off"),
    ("numa", "1", 1, 1),
    ("tier", "/nvme0/kv:/nvme1/kv", ["/nvme0/kv", "/nvme1/kv"], "/nvme0/kv:/nvme1/kv"),
    ("tier_size", "100GiB", "100GiB", 100 * GIB),
    ("tier_engine", "threads", "threads", "threads"),
    ("tier_direct", "off", "off", "off"),
    ("tier_sync", "yes", True, True),
    ("tier_admit", "2", 2, 2),
    ("tier_write", "lazy", "lazy", "lazy"),
    ("tier_gather", "8MiB", "8MiB", 8 << 20),
    ("tier_age", "0.5", 0.5, 0.5),
    ("tier_low", "0.5", 0.5, 0.5),
    ("tier_stores", "4", 4, 4),
    ("tier_min_prefix", "8", 8, 8),
    ("tier_min_priority", "60", 60, 60),
    ("tier_mover", "off", "off", "off"),
    ("tier_min_speed", "800MiB", "800MiB", 800 << 20),
    ("tier_wait", "0.5", 0.5, 0.5),
    ("prefetch_ahead", "64", 64, 64),
    ("events", "on", True, True),
    ("log_requests", "off", False, False),
    ("label", "engine 3", "engine 3", "engine 3"),
    ("trace", "/var/log/kvshm/trace", "/var/log/kvshm/trace", "/var/log/kvshm/trace"),
    ("trace_limit", "2GiB", 2 * GIB, 2 * GIB),
]
BAD: list[tuple[str, Any, str]] = [
    ("name", "Team", "starts with"),
    ("name", "-x", "starts with"),
    ("name", "x" * 64, "'auto' or a name"),
    ("size", "3 gigs", "text like '8GiB'"),
    ("size", -1, "from 0"),
    ("size", 1 << 63, "2^63"),
    ("size", 1.5, "number of bytes"),
    ("size", True, "number of bytes"),
    ("dir", "relative/path", "absolute path"),
    ("dir", 3, "absolute path"),
    ("namespace", "a\0b", "control characters"),
    ("namespace", "n" * 201, "at most 200"),
    ("namespace", None, "text"),
    ("weights", 12, "text"),
    ("weights_check", "ful", "did you mean 'full'"),
    ("load", "asinc", "did you mean 'async'"),
    ("load", True, "one of auto, sync, async"),
    ("read", 1, "true or false"),
    ("write", "maybe", "true or false"),
    ("save_decode", None, "true or false"),
    ("min_tokens", -1, "whole number from 0"),
    ("min_tokens", 1.5, "whole number"),
    ("min_tokens", "1.5", "whole number"),
    ("min_tokens", True, "whole number"),
    ("timeout", 0, "seconds from 0.1"),
    ("timeout", "nan", "seconds"),
    ("timeout", float("inf"), "seconds"),
    ("load_timeout", "soon", "seconds"),
    ("load_timeout", 3601, "to 3600"),
    ("priority", 0, "from 1 to 100"),
    ("priority", 101, "from 1 to 100"),
    ("quota", "-2GiB", "number of bytes"),
    ("pin", "on", "one of auto, require, off"),
    ("huge", "requires", "did you mean 'require'"),
    ("numa", -1, "number from 0"),
    ("numa", "node0", "auto, interleave"),
    ("numa", True, "auto, interleave"),
    ("tier", "kv", "absolute paths"),
    ("tier", ["/a"] * 9, "at most 8"),
    ("tier", ["/a", 1], "absolute paths"),
    ("tier", "/nvme0/:/nvme1/kv", "absolute paths"),
    ("tier_size", "-1", "number of bytes"),
    ("tier_engine", "iouring", "did you mean 'io_uring'"),
    ("tier_direct", True, "one of auto, require, off"),
    ("tier_sync", 2, "true or false"),
    ("tier_admit", 0, "from 1 to 255"),
    ("tier_write", "lasy", "did you mean 'lazy'"),
    ("tier_gather", "much", "number of bytes"),
    ("tier_age", 0, "seconds from 0.001"),
    ("tier_low", 0, "share from 0.001 to 1"),
    ("tier_low", "nan", "share from 0.001 to 1"),
    ("tier_stores", 0, "from 1 to 1024"),
    ("tier_min_prefix", "few", "whole number from 0"),
    ("tier_min_priority", 101, "from 0 to 100"),
    ("tier_mover", "on", "one of auto, off"),
    ("tier_min_speed", "fast", "number of bytes"),
    ("tier_wait", -1, "seconds from 0"),
    ("prefetch_ahead", "all", "a whole number from 0"),
    ("events", "", "true or false"),
    ("log_requests", [], "true or false"),
    ("label", "l" * 64, "at most 63"),
    ("trace", "trace.jsonl", "absolute path of a file"),
    ("trace", "/var/log/", "absolute path of a file"),
    ("trace_limit", "much", "number of bytes"),
]


def test_every_option_is_tried_here() -> None:
    names = [option.name for option in options()]
    assert [name for name, *_ in GOOD] == names
    assert {name for name, *_ in BAD} == set(names)


@pytest.mark.parametrize(("name", "text", "value", "want"), GOOD, ids=[row[0] for row in GOOD])
def test_an_option_from_each_source(name: str, text: str, value: Any, want: Any) -> None:
    variable = f"KVSHM_{name.upper()}"
    plain = kvshm.Config.resolve({}, {})
    by_env = kvshm.Config.resolve({}, {variable: text})
    by_dict = kvshm.Config.resolve({name: value}, {})
    by_text = kvshm.Config.resolve({name: text}, {})
    direct = kvshm.Config(**{name: value})
    assert getattr(plain, name) != want and plain.source(name) == "default"
    for config, source in ((by_env, f"environment {variable}"),
                           (by_dict, "kv_connector_extra_config"),
                           (by_text, "kv_connector_extra_config"), (direct, "argument")):
        found = getattr(config, name)
        assert found == want and type(found) is type(want)
        assert config.source(name) == source
        assert {n: s for n, _, s in config.describe()}[name] == source
        others = [n for n, _, s in config.describe() if s != "default"]
        assert others == [name], "no other option changed"


@pytest.mark.parametrize(("name", "value", "wanted"), BAD)
def test_a_wrong_value_is_refused(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(kvshm.InvalidArgument) as refused:
        kvshm.Config.resolve({name: value}, {})
    message = str(refused.value)
    assert name in message and wanted in message and "kv_connector_extra_config" in message
    assert str(value)[:80] in message or repr(str(value))[1:-1][:60] in message
    if isinstance(value, str) and value:
        variable = f"KVSHM_{name.upper()}"
        with pytest.raises(kvshm.InvalidArgument, match=f"environment {variable}"):
            kvshm.Config.resolve({}, {variable: value})


@pytest.mark.parametrize(("given", "env", "hint"), [
    ({"sizze": 1}, {}, "'size'"),
    ({"loadtimeout": 1}, {}, "'load_timeout'"),
    ({"KVSHM_SIZE": 1}, {}, "size"),
    ({3: 1}, {}, "there are name, size"),
    ({}, {"KVSHM_SIZZE": "1"}, "'KVSHM_SIZE'"),
    ({}, {"KVSHM_SAVE_DECODED": ""}, "'KVSHM_SAVE_DECODE'"),
    ({}, {"KVSHM_size": "1"}, "'KVSHM_SIZE'"),
])
def test_an_unknown_name_is_refused(given: Any, env: Any, hint: str) -> None:
    with pytest.raises(kvshm.InvalidArgument, match="no option") as refused:
        kvshm.Config.resolve(given, env)
    assert hint in str(refused.value)


@pytest.mark.parametrize("given", [[], "size=1", 3])
def test_no_dict(given: Any) -> None:
    with pytest.raises(kvshm.InvalidArgument, match="dict"):
        kvshm.Config.resolve(given, {})


def test_the_engines_configuration_wins() -> None:
    env = {"KVSHM_SIZE": "2GiB", "KVSHM_PRIORITY": "60", "KVSHM_TIMEOUT": "4"}
    config = kvshm.Config.resolve({"size": "3GiB", "priority": 60}, env)
    assert (config.size, config.priority, config.timeout) == (3 * GIB, 60, 4.0)
    assert config.overridden == (("size", 2 * GIB, 3 * GIB),)
    assert config.source("size") == "kv_connector_extra_config"
    assert config.source("timeout") == "environment KVSHM_TIMEOUT"


def test_a_wrong_variable_is_refused_also_when_overridden() -> None:
    with pytest.raises(kvshm.InvalidArgument, match="environment KVSHM_PRIORITY"):
        kvshm.Config.resolve({"priority": 60}, {"KVSHM_PRIORITY": "high"})


@pytest.mark.parametrize(("given", "named"), [
    ({"read": False, "write": False}, "size=0"),
    ({"weights": "w", "weights_check": "full"}, "weights_check"),
    ({"read": False, "load": "sync"}, "load"),
    ({"read": False, "min_tokens": 64}, "min_tokens"),
    ({"read": False, "load_timeout": 3}, "load_timeout"),
    ({"write": False, "save_decode": True}, "save_decode"),
    ({"write": False, "priority": 70}, "priority"),
    ({"write": False, "tier_write": "lazy"}, "tier_write"),
    ({"write": False, "events": True}, "events"),
    ({"load": "sync", "load_timeout": 3}, "load_timeout"),
])
def test_a_contradiction_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(kvshm.InvalidArgument, match="contradict") as refused:
        kvshm.Config.resolve(given, {})
    assert named in str(refused.value)
    # One source against another is the same, and both are named.
    (one, value), *rest = given.items()
    env = {f"KVSHM_{name.upper()}": str(other).lower() for name, other in rest}
    with pytest.raises(kvshm.InvalidArgument, match="contradict") as refused:
        kvshm.Config.resolve({one: value}, env)
    assert "environment KVSHM_" in str(refused.value)


def test_what_is_off_says_so() -> None:
    rows = {name: value for name, value, _ in kvshm.Config.resolve({"size": 0}, {}).describe()}
    assert rows["size"] == "off" and rows["quota"] == "off"
    rows = {name: value for name, value, _ in kvshm.Config.resolve({}, {}).describe()}
    assert rows["size"] == "8 GiB"
    assert [show_size(n) for n in (1, 1 << 20, (1 << 30) + 1)] == ["1 B", "1 MiB", "1073741825 B"]


def test_variables_of_others_are_left_alone() -> None:
    env = {name: "1" for name in ELSEWHERE}
    # What Kubernetes sets where a service is called kvshm or kvshm-metrics.
    env |= {"KVSHM_SERVICE_HOST": "10.0.0.1", "KVSHM_SERVICE_PORT_HTTP": "80",
            "KVSHM_PORT": "tcp://10.0.0.1:80", "KVSHM_PORT_80_TCP_ADDR": "10.0.0.1",
            "KVSHM_METRICS_SERVICE_HOST": "10.0.0.2", "PATH": "/bin", "KVSHM_LABEL": ""}
    assert kvshm.Config.resolve({}, env) == kvshm.Config()


def test_elsewhere_lists_what_the_code_reads() -> None:
    read = set()
    for folder in ("src", "tools", "tests", "cpp"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".pyx", ".c", ".cpp", ".hpp"}:
                read |= set(re.findall(r'(?:getenv\(|environ(?:\.get\(|\[))"(KVSHM_[A-Z_]+)"',
                                       path.read_text()))
    assert len(read) > 5 and read == ELSEWHERE


def test_frozen_and_carried_to_other_processes() -> None:
    config = kvshm.Config.resolve({"size": "3GiB"}, {"KVSHM_SIZE": "2GiB", "KVSHM_LABEL": "x"})
    with pytest.raises(AttributeError):
        config.size = 1  # type: ignore[misc]
    twin = pickle.loads(pickle.dumps(config))
    assert twin == config and twin.describe() == config.describe()
    assert twin.overridden == config.overridden
    with pytest.raises(kvshm.InvalidArgument, match="did you mean 'size'"):
        config.source("sizze")


def test_quota_in_blocks() -> None:
    config = kvshm.Config(quota="1GiB")  # type: ignore[arg-type]
    assert config.quota_blocks(2 << 20) == 512
    assert config.quota_blocks(3 << 30) == 1, "never 0, which is no limit"
    assert kvshm.Config().quota_blocks(2 << 20) == 0


def test_the_table_in_the_documentation() -> None:
    page = (ROOT / "docs" / "vllm.md").read_text()
    found = re.search(r"<!-- options: python -m kvshm.config -->\n(.*?)\n<!-- end -->", page, re.S)
    assert found and found[1] == table()
    printed = subprocess.run([sys.executable, "-m", "kvshm.config"], capture_output=True,
                             text=True, timeout=60, check=True)
    assert printed.stdout.rstrip("\n") == table() and not printed.stderr
