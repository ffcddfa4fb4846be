# SPDX-License-Identifier: Apache-2.0
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from kvshm.index.identity import Identity

@final
class KeyChain:
    def __new__(
        cls,
        identity: Identity,
        salt: str | bytes | None = None,
        extra: Any = b"",
        parent: Any = None,
    ) -> Self: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def keys(self) -> npt.NDArray[np.uint8]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def tail(self) -> npt.NDArray[np.uint32]: ...
    def extend(self, tokens: Any) -> npt.NDArray[np.uint8]: ...
    def __len__(self) -> int: ...
