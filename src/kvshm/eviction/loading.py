# SPDX-License-Identifier: Apache-2.0
"""From a name on a command line to a policy. Nothing that an arena holds is ever taken as code."""
from __future__ import annotations

import importlib
from functools import reduce

from kvshm.errors import InvalidArgument
from kvshm.eviction.marker import AnyScorer
from kvshm.eviction.marks import Scorer

BUILT_IN = ("lru", "lfu", "freqage")


def load_policy(name: str) -> AnyScorer:
    """"lru", "lfu", "freqage", or "package.module:Name": a Scorer of Cython, a function (table,
    now) -> scores, or a class whose objects are such functions, which is made one of.

    Raises InvalidArgument that says which part of the name is not there. Importing runs the module:
    what it raises itself comes out as it is.
    """
    if name in BUILT_IN:
        return name
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        raise InvalidArgument(f"policy: expected package.module:Name or one of "
                              f"{', '.join(BUILT_IN)}, got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidArgument(f"policy: no module {error.name!r}: install it in the environment "
                              "of this Python, or name its folder in PYTHONPATH") from None
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise InvalidArgument(f"policy: {module_name}: {error}") from None
    policy = found() if isinstance(found, type) else found
    if not isinstance(policy, Scorer) and not callable(policy):
        raise InvalidArgument(f"policy: {name} is {type(policy).__name__}, neither a function nor "
                              "made by make_scorer()")
    return policy
