# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np

HANDLE_DTYPE: np.dtype[Any]

def parse_size(size: int | str | None) -> int: ...
def tag_number(tag: int | str) -> int: ...
