# SPDX-License-Identifier: Apache-2.0
"""torch.cuda without a GPU, over the fake driver (tests/device/native/fake_cuda.c) of this process,
which must have been started with it. Copies and events wait in their stream until it is run."""
from __future__ import annotations

import ctypes
import types
from typing import Any


class Cuda:
    """What kvshm.connectors.vllm.cuda uses of torch.cuda. `log`: what was done to streams and
    events, each with the number of copies that had been asked for by then."""

    def __init__(self, hold: bool = True) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.lib.fake_stream.restype = ctypes.c_void_p
        self.lib.fake_copies.restype = self.lib.fake_run.restype = ctypes.c_size_t
        self.lib.cuInit(0)
        self.lib.fake_copies_reset(ctypes.c_size_t(0))
        self.lib.fake_hold(int(hold))
        self.hold = hold
        self.log: list[tuple[Any, ...]] = []
        self.streams: list[Stream] = []
        self.current = self.Stream("engine")
        self.asked = 0  # events that are asked before one has passed, where nothing is held

    def Stream(self, name: str = "", device: str = "") -> Stream:  # noqa: N802
        self.streams.append(Stream(self, name or f"{len(self.streams)}", len(self.streams)))
        return self.streams[-1]

    def Event(self) -> Event:  # noqa: N802
        return Event(self)

    def current_stream(self, device: str = "") -> Stream:
        return self.current

    def module(self) -> types.ModuleType:
        """For sys.modules."""
        torch = types.ModuleType("torch")
        torch.cuda = self  # type: ignore[attr-defined]
        return torch

    def copies(self) -> int:
        batches, to = ctypes.c_size_t(), ctypes.c_void_p()
        return int(self.lib.fake_copies(ctypes.byref(batches), ctypes.byref(to)))

    def fail_copy(self, number: int) -> None:
        """The copy of this number, counted from 1, is refused."""
        self.lib.fake_copies_reset(ctypes.c_size_t(number))

    def note(self, *what: Any) -> None:
        self.log.append((*what, self.copies()))


class Stream:
    def __init__(self, cuda: Cuda, name: str, number: int) -> None:
        self.cuda, self.name = cuda, name
        self.cuda_stream = int(cuda.lib.fake_stream(number))
        self.behind: list[Stream] = []
        self.events: list[Event] = []

    def wait_stream(self, other: Stream) -> None:
        self.cuda.note("wait", self.name, other.name)
        self.behind.append(other)

    def run(self) -> int:
        """All that stands in it, and before it in others: how many copies were its own."""
        behind, self.behind = self.behind, []
        for other in behind:
            other.run()
        n = int(self.cuda.lib.fake_run(ctypes.c_void_p(self.cuda_stream)))
        events, self.events = self.events, []
        for event in events:
            event.passed = True
        return n

    def synchronize(self) -> None:
        self.cuda.note("synchronize", self.name)
        self.run()


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.passed = cuda, False
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.cuda.note("record", stream.name)
        self.stream = stream
        stream.events.append(self)

    def query(self) -> bool:
        assert self.stream is not None
        if not self.cuda.hold:
            self.cuda.asked += 1
            if self.cuda.asked % 3 == 0:
                self.stream.run()
        return self.passed

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.synchronize()
