# SPDX-License-Identifier: Apache-2.0
from typing import Any, final

import numpy as np
import numpy.typing as npt

from kvshm.attach import Attachment

BLOCK_DTYPE: np.dtype[np.void]

@final
class BlockTable:
    @property
    def arena(self) -> Attachment: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def block_table(arena: Attachment) -> npt.NDArray[Any]: ...
