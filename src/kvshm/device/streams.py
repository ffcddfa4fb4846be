# SPDX-License-Identifier: Apache-2.0
"""On what a pool's copies run: in the calling thread, or on two streams of a CUDA device."""
from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

from kvshm.device import nodes
from kvshm.errors import Error, TimedOut

log = logging.getLogger("kvshm.device")


class HostStreams:
    """Copies are done when they have been called."""

    later = False

    def begin(self, way: str) -> Any:
        return None

    def event(self, way: str) -> Any:
        return None

    def order(self, way: str, stream: Any) -> None:
        pass

    def register(self, arena: Any, backend: Any, drain: float) -> bool | None:
        return None

    def node(self, pages: Any) -> int | None:
        return nodes.node_of_memory(min(address for address, *_ in pages.runs))


class CudaStreams:
    """Stores read behind what the engine's current stream has been given; loads begin there, too,
    since their targets may still be read. Neither is waited for."""

    later = True

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device
        self.streams = {way: torch.cuda.Stream(device=device) for way in ("load", "store")}
        find_nvrtc()

    def begin(self, way: str) -> Any:
        stream = self.streams[way]
        stream.wait_stream(self.torch.cuda.current_stream(self.device))
        return stream.cuda_stream

    def event(self, way: str) -> Any:
        event = self.torch.cuda.Event()
        event.record(self.streams[way])
        return event

    def order(self, way: str, stream: Any) -> None:
        (stream or self.torch.cuda.current_stream(self.device)).wait_stream(self.streams[way])

    def register(self, arena: Any, backend: Any, drain: float) -> bool | None:
        """In the background. True: it goes on; False: refused."""
        number = self.device.partition(":")[2]
        try:
            arena.register_device(backend, timeout=0, drain=drain,
                                  device=int(number) if number else None)
        except TimedOut:
            pass
        except Error as error:
            log.warning("kvshm: the arena is not registered with the device: %s", error)
            return False
        return True

    def node(self, pages: Any) -> int | None:
        return nodes.node_of_device(self.torch, self.device)


def streams_of(device: str) -> Any:
    return CudaStreams(device) if device.startswith("cuda") else HostStreams()


def find_nvrtc() -> None:
    """Load the compiler that torch's wheels bring, so that the library finds it by its name."""
    if sys.platform != "linux":
        return
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*")):
            try:
                ctypes.CDLL(str(path))
                return
            except OSError:
                continue
