# SPDX-License-Identifier: Apache-2.0
"""From the ARENA of the command line to something to look into."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..inspector import layout, objects
from .failures import DENIED, LAYOUT, NO_ARENA, NOT_READY, USAGE, Failure

if TYPE_CHECKING:
    from ..inspector.view import View


IMAGE = "-g3"


def choose(name: str | None, folder: str | None) -> str:
    """The name given, or that of the only arena there is."""
    where = folder or objects.SHM
    if name is None:
        found = names(folder)
        there = [one for one in found if not is_image(one, found, folder)]
        if not there:
            raise Failure(NO_ARENA, "", f"no arena in {where}",
                          "`kvshm list --dir DIR` looks elsewhere")
        if len(there) > 1:
            raise Failure(USAGE, "", f"{len(there)} arenas in {where}", "name one of "
                          + ", ".join(there[:8]) + (", ..." if len(there) > 8 else ""))
        return there[0]
    name = name.removeprefix(objects.PREFIX)
    if not name or "/" in name or "\0" in name:
        raise Failure(USAGE, "", f"{name!r} cannot be an arena's name", "`kvshm list` shows names")
    return name


def is_image(name: str, names: list[str], folder: str | None) -> bool:
    """Of the tier of one of them: no arena to be named by itself. What only has such a name says
    of no files."""
    if not name.endswith(IMAGE) or name[:-len(IMAGE)] not in names:
        return False
    try:
        fd = objects.open_read_only(name, folder)
    except OSError:
        return False
    try:
        return os.pread(fd, 1, layout.TIER_PATH_AT) not in (b"", b"\0")
    finally:
        os.close(fd)


def names(folder: str | None) -> list[str]:
    try:
        return objects.names(folder)
    except OSError as e:
        code = DENIED if isinstance(e, PermissionError) else USAGE
        raise Failure(code, "", f"{folder or objects.SHM}: {e.strerror}") from None


def look_up(name: str, folder: str | None) -> tuple[int | None, objects.Verdict]:
    """objects.look_up; nothing there, or nothing that can be opened, is a Failure."""
    try:
        return objects.look_up(name, folder)
    except FileNotFoundError:
        raise Failure(NO_ARENA, name, f"there is no {objects.path_of(name, folder)}",
                      "`kvshm list` shows those that are") from None
    except OSError as e:
        raise Failure(LAYOUT, name, f"cannot be opened ({e.strerror})") from None


def open_view(name: str | None, folder: str | None) -> View:
    """A good arena to read. Anything else is a Failure that says what it is."""
    name = choose(name, folder)
    fd, verdict = look_up(name, folder)
    if fd is not None and verdict.kind == objects.GOOD:
        from ..inspector.view import View

        return View(fd, name, folder, verdict)
    if fd is not None:
        os.close(fd)
    raise refuse(name, verdict)


def refuse(name: str, verdict: objects.Verdict) -> Failure:
    """Why an object that is no good arena cannot be looked into."""
    if verdict.kind == objects.DENIED:
        return Failure(DENIED, name, verdict.why, "run it as that user, or as root")
    if verdict.kind == objects.UNFINISHED:
        return Failure(NOT_READY, name, f"unfinished, {verdict.why}",
                       f"wait, or remove it with `kvshm rm {name}`")
    if verdict.kind == objects.REMOVED:
        return Failure(NO_ARENA, name, "was removed, but its name is left",
                       f"`kvshm rm {name}` takes that away")
    if verdict.kind == objects.OTHER_LAYOUT:
        return Failure(LAYOUT, name, verdict.why, "use the kvshm that made it")
    return Failure(LAYOUT, name, f"{verdict.kind} ({verdict.why})",
                   f"`kvshm rm --force {name}` removes it")
