# SPDX-License-Identifier: Apache-2.0
"""`kvshm rm`: removes an arena as the protocol has it, and by a bare unlink what is none."""
from __future__ import annotations

import argparse
import os

from ..inspector import layout, locks, objects, tiers
from . import text, tier
from .arenas import choose, look_up, refuse
from .failures import DENIED, FINE, FOUND, NO_ARENA, NOT_READY, Failure, from_core

# What the core can remove: it takes the creation byte, marks the object dead, and unlinks it.
_CORE = (objects.GOOD, objects.REMOVED, objects.UNFINISHED)


def run(args: argparse.Namespace) -> int:
    name = choose(args.arena, args.dir)
    fd, verdict = look_up(name, args.dir)
    try:
        if verdict.kind == objects.DENIED:
            raise refuse(name, verdict)
        users = _users(fd)
        size = os.fstat(fd).st_size if fd is not None else 0
    finally:
        if fd is not None:
            os.close(fd)
    bare = verdict.kind not in _CORE
    image, files = None, ""
    if (found := tier.open_image(name, args.dir)) is not None:
        with found:
            image, files = found.name, tiers.files(found)
            users = max(users, sum(found.live_slots()))
    if users and not args.force:
        attached = text.many(users, "process is", "processes are")
        raise Failure(NOT_READY, name, f"{attached} attached",
                      "end them first; with --force they keep what they hold")
    if bare and not args.force:
        raise refuse(name, verdict)
    if not args.dry_run:
        (_unlink if bare else _remove)(name, args.dir, args.force)
        if image is not None and bare:  # the core takes it along
            _remove(image, args.dir, args.force)
    if args.json:
        text.print_json(text.document(
            "rm", name=name, path=objects.path_of(name, args.dir), state=verdict.kind, bytes=size,
            processes_alive=users, bare_unlink=bare, done=not args.dry_run,
            tier=None if image is None else dict(image=image, files=files)))
    elif not args.quiet:
        verb = "would be removed" if args.dry_run else "removed"
        how = f", by a bare unlink: {verdict.kind} ({verdict.why})" if bare else ""
        users_are = text.many(users, "process uses", "processes use")
        still = f"; {users_are} its memory still" if users else ""
        stays = f"; its blocks on disk stay in {text.clean(files)}" if image is not None else ""
        print(f"{text.clean(name)}: {verb} ({text.size(size)}){how}{still}{stays}")
    return FOUND if args.dry_run else FINE


def _users(fd: int | None) -> int:
    """Whatever the object says about itself: a held life byte is a process."""
    if fd is None:
        return 0
    return sum(locks.held(fd, locks.life(slot)) for slot in range(layout.SLOTS))


def _remove(name: str, folder: str | None, force: bool) -> None:
    import kvshm

    try:
        kvshm.remove(name, dir=folder, force=force)
    except kvshm.Error as e:
        raise from_core(e, name) from None


def _unlink(name: str, folder: str | None, force: bool) -> None:
    """Only for what the core cannot open: nobody can be told that it is going."""
    try:
        if folder is not None:
            os.unlink(objects.path_of(name, folder))
            return
        import posix_ipc

        try:
            posix_ipc.unlink_shared_memory("/" + objects.PREFIX + name)
        except posix_ipc.ExistentialError:
            raise FileNotFoundError from None
        except posix_ipc.PermissionsError:
            raise PermissionError from None
    except FileNotFoundError:
        raise Failure(NO_ARENA, name, "was removed by somebody else meanwhile") from None
    except PermissionError:
        raise Failure(DENIED, name, "may not be unlinked",
                      "run it as its owner, or as root") from None
