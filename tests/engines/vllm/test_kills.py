# SPDX-License-Identifier: Apache-2.0
"""An engine is killed in the middle of a copy, while another one serves all the time."""
from __future__ import annotations

import threading

from kvshm.tools.vllm.client import Answer, Engine, Request
from kvshm.tools.vllm.options import kvshm_connector
from support import PREFIX

from .halting import Halts, halting_connector
from .watching import one, prompt, until, watch

NAME = f"{PREFIX}kills"
CONFIG = {"name": NAME, "size": "64MiB"}
KNOWN = Request(prompt(1), 16)
OTHER = Request(prompt(2), 16)
BACK = 2.0  # seconds after a death until nothing of it is left


class Service:
    """Requests to an engine without a pause; each is loaded from the arena anew."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def some_more(self) -> bool:
        """Whether it goes on answering."""
        before = len(self.answers)
        return until(lambda: len(self.answers) > before + 2 or self.error, 60)

    def _serve(self) -> None:
        try:
            while not self._end.is_set():
                self._engine.reset_prefix_cache()
                self.answers.append(one(self._engine, KNOWN))
        except BaseException as error:
            self.error = error


def test_a_kill_in_mid_load_and_one_in_mid_save(new_engine, tmp_path):
    halts = Halts(tmp_path)

    def start_a(wait: bool) -> Engine:
        return new_engine(label="a", wait=wait, connector=halting_connector(CONFIG),
                          env=halts.env)

    a = start_a(wait=False)
    b = new_engine(label="b", connector=kvshm_connector(CONFIG))
    a.ready()
    with watch(NAME) as seen:
        one(b, KNOWN)
        right = one(b, KNOWN).tokens  # from its own cache: of the split that a load's has
        assert one(a, KNOWN).num_cached_tokens == 992
        good = seen.digests()
        assert len(good) == 31
        with Service(b) as service:
            for what in ("load", "save"):
                halts.order(what, after=10)
                a.reset_prefix_cache()
                begun = a.begin([KNOWN if what == "load" else OTHER])
                assert halts.wait() == a.pid
                assert not begun.done() and seen.of(a.pid)
                busy = seen.in_use()
                assert busy[0] >= 31 if what == "load" else busy[1] == 31 - 10
                assert service.some_more()
                a.kill()
                assert until(lambda: not seen.of(a.pid), BACK)
                assert until(lambda: seen.in_use()[1] == 0, BACK)
                found = seen.digests()
                assert {key: found[key] for key in good} == good
                assert len(found) == (31 if what == "load" else 41)
                assert seen.is_clean()
                assert service.some_more()

                a = start_a(wait=True)
                warm = one(a, KNOWN)  # its first request
                assert warm.num_cached_tokens == 992 and warm.tokens == right
        assert service.error is None
        assert len(service.answers) > 8
        assert {tuple(one.tokens) for one in service.answers} == {tuple(right)}
        assert all(one.num_cached_tokens == 992 for one in service.answers)
        assert seen.in_use() == (0, 0)

        # What was saved before the kill is right, and the rest is made up for.
        rest = one(a, OTHER)
        assert rest.num_cached_tokens == 320
        rest = one(a, OTHER)  # from its own cache
        b.reset_prefix_cache()
        again = one(b, OTHER)
        assert again.num_cached_tokens == 992 and again.tokens == rest.tokens
        assert seen.is_clean()
