# SPDX-License-Identifier: Apache-2.0
"""What is looked up, written down for `kvshm replay` (option trace); each request once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import kvshm
from kvshm.index import TraceWriter

from .groups import Group
from .requests import RequestState

log = logging.getLogger("vllm.kvshm")


class Lookups:
    """Threads: the scheduler's only. Raises nothing; a file that cannot be written is a warning."""

    def __init__(self, config: kvshm.Config, groups: Sequence[Group]) -> None:
        # One group stands for all: one that needs every block, where there is one.
        self._group = next((at for at, group in enumerate(groups) if not group.partial), 0)
        self._writer: TraceWriter | None = None
        if config.trace:
            try:
                self._writer = TraceWriter(config.trace, groups[self._group].block_tokens,
                                           limit=config.trace_limit, logger=log)
            except (OSError, kvshm.Error) as error:
                log.warning("kvshm: option trace: %s; look-ups are not recorded", error)

    def note(self, state: RequestState) -> None:
        """At every try of a look-up; the first one counts."""
        if self._writer is None or state.noted:
            return
        state.noted = True
        state.extend_keys()
        request = state.request
        # The keys' room is only ever added to, so they may be read later.
        self._writer.add(state.keys[self._group][:], request.num_tokens,
                         getattr(request, "cache_salt", None))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
