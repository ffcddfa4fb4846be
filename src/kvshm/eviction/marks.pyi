# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt

from kvshm.attach import Attachment

MOST_MARKS: int

@final
class Scorer: ...

_Scorer = str | Scorer | Callable[[Any, int], Any]

def mark_new(
    arena: Attachment, n: int, scorer: _Scorer, marked: npt.NDArray[np.uint64] | None
) -> tuple[npt.NDArray[np.uint32], int, int]: ...
def mark_victims(arena: Attachment, n: int, scorer: _Scorer = "lru") -> int: ...
def marks_left(arena: Attachment) -> int: ...
def free_blocks(arena: Attachment) -> int: ...
