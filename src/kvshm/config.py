# SPDX-License-Identifier: Apache-2.0
"""kvshm.Config: all that an engine's connector can be told, in one place.

An option has one name everywhere: here, as a key of vLLM's kv_connector_extra_config, and in the
environment as KVSHM_ and the name in capitals. `python -m kvshm.config` prints the table of
docs/vllm.md.
"""
from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvshm.errors import InvalidArgument
from kvshm.nearest import suggestion
from kvshm.options import (
    DIRECTORY,
    FILE,
    FILES,
    SIZE,
    SWITCH,
    Kind,
    choice,
    seconds,
    share,
    text,
    whole,
)

PREFIX = "KVSHM_"
DICT = "kv_connector_extra_config"

# Read by other parts: the first by kvshm.views, the last by `kvshm replay`, the rest by tests and
# what they start.
ELSEWHERE = frozenset({
    "KVSHM_CHECK",
    "KVSHM_COUNT", "KVSHM_CTEST_DIR", "KVSHM_FAKE_CUDA_DEVICES", "KVSHM_FAKE_CUDA_LATE_MS",
    "KVSHM_FAKE_CUDA_WRONG", "KVSHM_FAKE_CUDA_WRONG_PAGED", "KVSHM_FAKE_CUFILE",
    "KVSHM_FAKE_NVRTC", "KVSHM_FUZZ", "KVSHM_GDS_ALONE", "KVSHM_GPU_CHECK_DIR", "KVSHM_KILL",
    "KVSHM_STOP_SECONDS", "KVSHM_TEST_DISK", "KVSHM_TEST_ENGINE", "KVSHM_TEST_ROUNDS",
    "KVSHM_TEST_SEED", "KVSHM_TEST_WHY", "KVSHM_TRACES",
})
# Kubernetes puts these into every container of a namespace with a service called kvshm or kvshm-x.
_SERVICE = re.compile(r"KVSHM_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")

_NAME = text(63, r"[a-z0-9][a-z0-9_-]*", "'auto' or a name of [a-z0-9_-] that starts with [a-z0-9]")
_MODE = choice("auto", "require", "off")


def _option(default: Any, kind: Kind, help: str) -> Any:
    return field(default=kind.read(default), metadata={"kind": kind, "help": help})


class Option(NamedTuple):
    """One option: its name here and in the environment, its kind, its default as text, its help."""

    name: str
    environment: str
    kind: Kind
    default: str
    help: str


class Overridden(NamedTuple):
    """An option that the environment and the engine's configuration set differently."""

    name: str
    environment: Any
    used: Any


@dataclass(frozen=True)
class Config:
    """Frozen; every value has been checked. Config.resolve() is how a connector gets one.

    Raises InvalidArgument for what is not known, of the wrong type, out of range, or contradicts
    itself: what was wanted, what was found, what to do.
    """

    name: str = _option("auto", _NAME, "name of the arena; auto = one per user and identity")
    size: int = _option("8GiB", SIZE, "the whole arena, by who creates it; 0 = off, nothing is "
                                      "loaded or saved")
    dir: str | None = _option("", DIRECTORY, "a tmpfs or hugetlbfs directory in place of /dev/shm")
    namespace: str = _option("", text(200), "keeps apart what must not meet")
    weights: str = _option("", text(200), "fingerprint of the weights, in place of one from files")
    weights_check: str = _option(
        "sample", choice("sample", "full", "name"),
        "fingerprint from headers and a sample of every tensor, from all bytes, or none: the "
        "model's name has to do")
    load: str = _option("auto", choice("auto", "sync", "async"),
                        "load within the step, beside it, or as it pays off")
    read: bool = _option(True, SWITCH, "load blocks from the arena")
    write: bool = _option(True, SWITCH, "save blocks to the arena")
    save_decode: bool = _option(True, SWITCH, "save blocks that decoding filled, too")
    min_tokens: int = _option(0, whole(0, 1 << 30, "tokens"), "a shorter hit is not loaded")
    timeout: float = _option(10.0, seconds(0.1, 3600), "limit of attaching to the arena")
    load_timeout: float = _option(30.0, seconds(0.1, 3600),
                                  "limit of an async load; then its tokens are computed")
    priority: int = _option(50, whole(1, 100), "of saved blocks; 100 is never evicted")
    quota: int = _option(0, SIZE, "bytes that this process may hold or fill at once; 0 = off")
    pin: str = _option("auto", _MODE, "lock the arena's pages in memory")
    huge: str = _option("auto", _MODE, "use huge pages")
    numa: str | int = _option("auto", choice("auto", "interleave", number=True),
                              "node of the arena's memory")
    tier: str = _option("", FILES, "keep blocks on disk, too: a file, or one a device, ':' between")
    tier_size: int = _option(0, SIZE, "of all its files, by who makes them; 0 = off, what is there")
    tier_engine: str = _option("auto", choice("auto", "io_uring", "threads"), "what moves bytes")
    tier_direct: str = _option("auto", _MODE, "past the page cache")
    tier_sync: bool = _option(False, SWITCH, "what is found on disk survives a power cut")
    tier_admit: int = _option(1, whole(1, 255, "times"), "offers of a block before it is written")
    tier_write: str = _option(
        "through", choice("through", "lazy", "watermark", "release", "idle", "off"),
        "when a block goes to disk: when it is stored; gathered; when few are free; when a store "
        "or a load gives it back; when nothing is scheduled; never")
    tier_gather: int = _option("64MiB", SIZE, "lazy: bytes that are gathered; 0 = off")
    tier_age: float = _option(1.0, seconds(0.001, 3600), "lazy: or so long, the oldest of them")
    tier_low: float = _option(0.25, share(), "watermark: a smaller share of free blocks is few")
    tier_stores: int = _option(16, whole(1, 1024, "blocks"), "written at once, at most")
    tier_min_prefix: int = _option(0, whole(0, 1 << 20, "blocks"),
                                   "a block that ends a shorter prefix is not written for its own "
                                   "sake")
    tier_min_priority: int = _option(0, whole(0, 100), "blocks of a lower one are not written")
    tier_mover: str = _option("auto", choice("auto", "off"),
                              "may be who moves blocks for all engines, or never: then kvshm "
                              "agent --tier, or another engine, must")
    tier_min_speed: int = _option(0, SIZE, "bytes a second that computing blocks anew makes: a "
                                           "slower disk is not loaded from; 0 = off")
    tier_wait: float = _option(5.0, seconds(0, 3600),
                               "limit of loading a request's blocks from disk; then what is in "
                               "memory counts")
    prefetch_ahead: int = _option(0, whole(0, 1 << 30, "blocks"),
                                  "blocks that are brought from disk for requests in line, when "
                                  "they come; 0 = off: when it is their turn")
    events: bool = _option(False, SWITCH, "publish KV events for blocks that this process stored")
    log_requests: bool = _option(True, SWITCH, "one INFO line per request")
    label: str = _option("", text(63),
                         "this process's name in the inspector; \"-\" = the engine's id")
    trace: str | None = _option("", FILE, "write what is looked up to this file, for kvshm replay")
    trace_limit: int = _option("1GiB", SIZE, "bytes of that file, where it ends; 0 = off")

    _sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    overridden: tuple[Overridden, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in options():
            value = getattr(self, option.name)
            value = _read(option, value, self._sources.get(option.name, "argument"))
            object.__setattr__(self, option.name, value)
        _check(self)

    @classmethod
    def resolve(cls, given: Mapping[str, Any] | None = None,
                env: Mapping[str, str] | None = None) -> Config:
        """From an engine's `kv_connector_extra_config` over the environment over the defaults.

        A variable that is set but empty counts as not set. Where both set an option, `given` wins,
        and `overridden` says so if they differ.
        """
        given = {} if given is None else given
        env = os.environ if env is None else env
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"{DICT}: expected a dict of options, got {given!r}")
        known = {option.name: option for option in options()}
        by_variable = {option.environment: option for option in options()}
        for name in given:
            if name not in known:
                raise InvalidArgument(_unknown(name, DICT, known))
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for variable, raw in env.items():
            if not variable.startswith(PREFIX) or variable in ELSEWHERE or _SERVICE.fullmatch(
                    variable):
                continue
            option = by_variable.get(variable)
            if option is None:
                raise InvalidArgument(_unknown(variable, "environment", by_variable))
            if raw:
                source = f"environment {variable}"
                values[option.name] = _read(option, raw, source)
                sources[option.name] = source
        overridden = []
        for name, raw in given.items():
            value = _read(known[name], raw, DICT)
            if name in values and values[name] != value:
                overridden.append(Overridden(name, values[name], value))
            values[name], sources[name] = value, DICT
        return cls(**values, _sources=sources, overridden=tuple(overridden))

    def source(self, name: str) -> str:
        """"default", "environment KVSHM_X", "kv_connector_extra_config", or "argument"."""
        if name not in _FIELDS:
            raise InvalidArgument(_unknown(name, "Config.source", _FIELDS))
        if name in self._sources:
            return self._sources[name]
        return "default" if getattr(self, name) == _FIELDS[name].default else "argument"

    def describe(self) -> list[tuple[str, str, str]]:
        """(name, value as text, source) of every option; a tier without space is "off"."""
        return [(option.name, option.kind.show(getattr(self, option.name)),
                 self.source(option.name)) for option in options()]

    def tier_arguments(self) -> tuple[list[str], int, dict[str, Any]] | None:
        """Paths, size and options for Arena.open_tier; None where there is to be none."""
        if not self.tier:
            return None
        return self.tier.split(":"), self.tier_size, dict(
            engine=self.tier_engine, direct=self.tier_direct, sync=self.tier_sync,
            admit=self.tier_admit, min_speed=self.tier_min_speed, write=self.tier_write,
            gather=max(1, self.tier_gather), age=self.tier_age, low=self.tier_low,
            stores=self.tier_stores, min_prefix=self.tier_min_prefix,
            min_priority=self.tier_min_priority, mover=self.tier_mover)

    def quota_blocks(self, block_bytes: int) -> int:
        """`quota` in blocks of this size, for Arena.open: at least 1, or 0 = off."""
        return max(1, self.quota // block_bytes) if self.quota else 0


_FIELDS = {f.name: f for f in dataclasses.fields(Config) if "kind" in f.metadata}
_OPTIONS = tuple(
    Option(name, PREFIX + name.upper(), f.metadata["kind"], f.metadata["kind"].show(f.default),
           f.metadata["help"]) for name, f in _FIELDS.items())


def options() -> tuple[Option, ...]:
    """All options, in the order of the table."""
    return _OPTIONS


def _read(option: Option, value: Any, source: str) -> Any:
    try:
        return option.kind.read(value)
    except ValueError as wanted:
        raise InvalidArgument(f"option {option.name} ({source}): expected {wanted}, got "
                              f"{str(value)[:80]!r}") from None


def _unknown(name: Any, source: str, valid: Mapping[str, Any]) -> str:
    hint = suggestion(name, valid) or f"; there are {', '.join(valid)}"
    return f"{source}: no option {str(name)[:80]!r} in this version of kvshm{hint}"


def _check(config: Config) -> None:
    """Refuse what cannot be meant together; only of what somebody has set."""
    for one, other, why in _contradictions(config):
        raise InvalidArgument(
            f"options {one} ({config.source(one)}) and {other} ({config.source(other)}) "
            f"contradict each other: {why}; leave one of them out")


def _contradictions(config: Config) -> Iterator[tuple[str, str, str]]:
    def is_set(name: str) -> bool:
        return config.source(name) != "default"

    if not config.read and not config.write:
        yield "read", "write", "nothing would be loaded or saved (size=0 says that)"
    if config.weights and is_set("weights_check"):
        yield "weights", "weights_check", "a fingerprint that is given is not computed"
    if not config.read:
        for name in ("load", "load_timeout", "min_tokens", "tier_wait"):
            if is_set(name):
                yield "read", name, "nothing is loaded"
    if not config.write:
        for name in ("save_decode", "priority", "events", "tier_admit", "tier_write"):
            if is_set(name) and getattr(config, name) is not False:
                yield "write", name, "nothing is saved"
    if config.load == "sync" and is_set("load_timeout"):
        yield "load", "load_timeout", "a load within the step has no time limit"


def table() -> str:
    """The options as a Markdown table."""
    rows = [("option", "environment", "value", "default", "what it does")]
    rows.append(("---",) * 5)
    rows += [(f"`{o.name}`", f"`{o.environment}`", o.kind.name, o.default, o.help)
             for o in options()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    print(table())
