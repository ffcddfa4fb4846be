# SPDX-License-Identifier: Apache-2.0
"""No error of ours leaves a method that vLLM calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def guarded(otherwise: Callable[..., Any]) -> Callable[[F], F]:
    """The method's answer, or that of `otherwise(...)`, with the same arguments but self, after an
    error, which goes to `self.trouble(method's name, error)`."""
    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.trouble(method.__name__, error)
                return otherwise(*args, **kwargs)
        return cast(F, call)
    return decorate


def nothing(*args: Any, **kwargs: Any) -> None:
    return None
