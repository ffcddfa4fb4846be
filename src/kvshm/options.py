# SPDX-License-Identifier: Apache-2.0
"""What an option of kvshm.Config may be: for each kind a name, and a reader that takes it or says
what it wanted.

A value comes as text from the environment and as JSON from an engine's configuration; both are
read alike. A reader raises ValueError with what it expects; Config adds the rest of the sentence.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvshm.nearest import suggestion

_WORDS = {"true": True, "1": True, "yes": True, "on": True,
          "false": False, "0": False, "no": False, "off": False}
_UNITS = ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)


@dataclass(frozen=True)
class Kind:
    """name: as the table shows it. read(value): the value, or ValueError. show(value): as text."""

    name: str
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str


def show_size(size: int) -> str:
    """8589934592 as "8 GiB", 0 as "off"."""
    for unit, scale in _UNITS:
        if size and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B" if size else "off"


def _read_switch(value: Any) -> bool:
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _read_size(value: Any) -> int:
    from kvshm.convert import parse_size

    wanted = "a number of bytes from 0 to 2^63-1 or text like '8GiB'"
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(wanted)
    try:
        size = parse_size(value)
    except ValueError:  # kvshm.InvalidArgument is one
        raise ValueError(wanted) from None
    if size >> 63:
        raise ValueError(wanted)
    return size


def _number(value: Any, wanted: str, cast: Callable[[Any], Any], *types: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, *types)):
        raise ValueError(wanted)
    try:
        return cast(value)
    except (ValueError, OverflowError):
        raise ValueError(wanted) from None


def _show_switch(value: bool) -> str:
    return "true" if value else "false"


SWITCH = Kind("true, false", _read_switch, _show_switch)
SIZE = Kind("bytes", _read_size, show_size)


def whole(low: int, high: int, unit: str = "") -> Kind:
    """A whole number from low to high."""
    wanted = f"a whole number from {low} to {high}"

    def read(value: Any) -> int:
        number: int = _number(value, wanted, int, int)
        if not low <= number <= high:
            raise ValueError(wanted)
        return number
    return Kind(f"{unit or 'number'}, {low} to {high}", read)


def seconds(low: float, high: float) -> Kind:
    """A time from low to high seconds."""
    wanted = f"seconds from {low:g} to {high:g}"

    def read(value: Any) -> float:
        number: float = _number(value, wanted, float, int, float)
        if not math.isfinite(number) or not low <= number <= high:
            raise ValueError(wanted)
        return number
    return Kind(f"seconds, {low:g} to {high:g}", read, lambda value: f"{value:g} s")


def share() -> Kind:
    """A part of a whole, from a thousandth to 1."""
    wanted = "a share from 0.001 to 1"

    def read(value: Any) -> float:
        number: float = _number(value, wanted, float, int, float)
        if not 0.001 <= number <= 1:
            raise ValueError(wanted)
        return number
    return Kind("0.001 to 1", read, lambda value: f"{value:g}")


def choice(*words: str, number: bool = False) -> Kind:
    """One of `words`; with number=True also a number from 0."""
    wanted = "one of " + ", ".join(words) + (" or a number from 0" if number else "")

    def read(value: Any) -> str | int:
        if isinstance(value, str) and value in words:
            return value
        if number and not isinstance(value, bool):
            text = str(value)
            if isinstance(value, (int, str)) and text.isascii() and text.isdigit():
                if int(text) < 1 << 16:
                    return int(text)
        raise ValueError(wanted + suggestion(value, words))
    return Kind(", ".join(words) + (", number" if number else ""), read)


def text(longest: int, pattern: str = "", wanted: str = "") -> Kind:
    """Text of at most `longest` bytes that matches `pattern`."""
    wanted = wanted or f"text of at most {longest} bytes without control characters"

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(wanted)
        if len(value.encode("utf-8", "replace")) > longest:
            raise ValueError(wanted)
        if pattern and not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(wanted)
        return value
    return Kind("text", read, lambda value: value or "none")


def _read_directory(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value or not value.startswith("/"):
        raise ValueError("the absolute path of a tmpfs or hugetlbfs directory")
    return value


def _read_file(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value or not value.startswith("/") or value[-1] == "/":
        raise ValueError("the absolute path of a file")
    return value


def _read_files(value: Any) -> str:
    given = value.split(":") if isinstance(value, str) else value
    wanted = "absolute paths of at most 8 files, a list or ':' between them"
    if value is None or value == "" or value == []:
        return ""
    if not isinstance(given, (list, tuple)) or len(given) > 8:
        raise ValueError(wanted)
    for one in given:
        try:
            if _read_file(one) is None or ":" in one:
                raise ValueError
        except ValueError:
            raise ValueError(wanted) from None
    return ":".join(given)


DIRECTORY = Kind("path", _read_directory, lambda value: value or "none")
FILE = Kind("path", _read_file, lambda value: value or "none")
FILES = Kind("paths", _read_files, lambda value: value or "none")
