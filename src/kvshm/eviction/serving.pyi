# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import numpy.typing as npt

from kvshm.attach import Attachment

def serve(
    arena: Attachment,
    keys: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int32],
    tenants: npt.NDArray[np.int64] | None = None,
) -> int: ...
def prefix(arena: Attachment, keys: Any) -> int: ...
