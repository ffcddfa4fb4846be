# SPDX-License-Identifier: Apache-2.0
"""One KV cache for all engine processes of a host.

    ident = kvshm.Identity(model="llama-3.1-8b", weights="sha256:...", block_tokens=16)
    with kvshm.Arena.open("auto", size="8GiB", block_bytes="2MiB", identity=ident) as arena:
        keys = ident.keys(tokens)                       # one per full block, chained
        with arena.match(keys) as hit:                  # the longest prefix, held
            ...                                         # read hit.view(i) in place
            rest = keys[len(hit):]
            with arena.allocate(len(rest), keys=rest, after=hit) as fill:
                ...                                     # write fill.view(i)
                fill.register().release()               # now every process finds them
"""
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvshm.attach import auto_name, remove
    from kvshm.config import Config
    from kvshm.convert import parse_size, tag_number
    from kvshm.core import Arena
    from kvshm.errors import (
        ArenaDamaged,
        ArenaExists,
        ArenaNotFound,
        ArenaNotReady,
        ArenaReplaced,
        Busy,
        Cancelled,
        Closed,
        Error,
        Forked,
        IdentityMismatch,
        InvalidArgument,
        LayoutMismatch,
        Misuse,
        NoSlot,
        NoSpace,
        NoSpaceInTime,
        OverPinBudget,
        OverQuota,
        PermissionDenied,
        TimedOut,
        TooLarge,
        Unsupported,
    )
    from kvshm.fill import Fill
    from kvshm.guards import (
        CompleteBlock,
        ImmutableBlock,
        MutableBlock,
        WeakBlock,
        match_blocks,
        mutable_blocks,
        register_blocks,
    )
    from kvshm.index import Identity, KeyChain, MatchPlan, SingleFlight, plan
    from kvshm.lease import Lease
    from kvshm.log import set_log
    from kvshm.objects import Object, ObjectFill
    from kvshm.records import (
        NONE,
        ArenaInfo,
        BlockInfo,
        Broken,
        DeviceInfo,
        DeviceRange,
        DeviceState,
        Handle,
        LoadState,
        Presence,
        ProcessInfo,
        ReapReport,
        State,
        Stats,
        Status,
        TenantInfo,
        TierInfo,
        TierState,
        TierStatus,
    )
    from kvshm.views import View

    __version__: str

# Nothing compiled is loaded before the first name is used: the command `kvshm` must start at once,
# and look into arenas also where the library does not load.
_HOME = {
    "kvshm.attach": "auto_name remove",
    "kvshm.config": "Config",
    "kvshm.convert": "parse_size tag_number",
    "kvshm.core": "Arena",
    "kvshm.errors":
        "ArenaDamaged ArenaExists ArenaNotFound ArenaNotReady ArenaReplaced Busy Cancelled Closed "
        "Error Forked IdentityMismatch InvalidArgument LayoutMismatch Misuse NoSlot NoSpace "
        "NoSpaceInTime OverPinBudget OverQuota PermissionDenied TimedOut TooLarge Unsupported",
    "kvshm.fill": "Fill",
    "kvshm.guards":
        "CompleteBlock ImmutableBlock MutableBlock WeakBlock match_blocks mutable_blocks "
        "register_blocks",
    "kvshm.index": "Identity KeyChain MatchPlan SingleFlight plan",
    "kvshm.lease": "Lease",
    "kvshm.log": "set_log",
    "kvshm.objects": "Object ObjectFill",
    "kvshm.records":
        "NONE ArenaInfo BlockInfo Broken DeviceInfo DeviceRange DeviceState Handle LoadState "
        "Presence ProcessInfo ReapReport State Stats Status TenantInfo TierInfo TierState "
        "TierStatus",
    "kvshm.views": "View",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}
_SUBMODULES = {"capi", "config", "device", "errors", "eviction", "index", "paged", "paths",
               "records", "shm", "uring"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        value = import_module("kvshm._version").check_version()
    elif name in _MODULE:
        __getattr__("__version__")  # before any call: is the library of the header's version?
        value = getattr(import_module(_MODULE[name]), name)
        if name == "Arena":
            import_module("kvshm.eviction.adaptive")  # sets what an arena's ticks call
    elif name in _SUBMODULES:
        value = import_module(f"kvshm.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "NONE",
    "Arena",
    "ArenaDamaged",
    "ArenaExists",
    "ArenaInfo",
    "ArenaNotFound",
    "ArenaNotReady",
    "ArenaReplaced",
    "BlockInfo",
    "Broken",
    "Busy",
    "Cancelled",
    "Closed",
    "CompleteBlock",
    "Config",
    "DeviceInfo",
    "DeviceRange",
    "DeviceState",
    "Error",
    "Fill",
    "Forked",
    "Handle",
    "Identity",
    "IdentityMismatch",
    "ImmutableBlock",
    "InvalidArgument",
    "KeyChain",
    "LayoutMismatch",
    "Lease",
    "LoadState",
    "MatchPlan",
    "Misuse",
    "MutableBlock",
    "NoSlot",
    "NoSpace",
    "NoSpaceInTime",
    "OverPinBudget",
    "OverQuota",
    "Object",
    "ObjectFill",
    "PermissionDenied",
    "Presence",
    "ProcessInfo",
    "ReapReport",
    "SingleFlight",
    "State",
    "Stats",
    "Status",
    "TenantInfo",
    "TierInfo",
    "TierState",
    "TierStatus",
    "TimedOut",
    "TooLarge",
    "Unsupported",
    "View",
    "WeakBlock",
    "auto_name",
    "match_blocks",
    "mutable_blocks",
    "parse_size",
    "plan",
    "register_blocks",
    "remove",
    "set_log",
    "tag_number",
]
