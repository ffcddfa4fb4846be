# SPDX-License-Identifier: Apache-2.0
from typing import Any

from kvshm.attach import Attachment
from kvshm.records import DeviceInfo, DeviceRange

def register(
    arena: Attachment,
    backend: Any,
    mode: str,
    piece: int | str,
    drain: float,
    device: int | None,
    timeout: float,
) -> DeviceInfo: ...
def wait(arena: Attachment, timeout: float) -> bool: ...
def unregister(arena: Attachment, timeout: float) -> None: ...
def describe(arena: Attachment) -> DeviceInfo: ...
def ranges(arena: Attachment) -> list[DeviceRange]: ...
