# SPDX-License-Identifier: Apache-2.0
import numpy as np
import numpy.typing as npt

def exact_lru(
    ids: npt.NDArray[np.int32], bounds: npt.NDArray[np.int64], capacity: int
) -> npt.NDArray[np.int32]: ...
def exact_arc(
    ids: npt.NDArray[np.int32], bounds: npt.NDArray[np.int64], capacity: int
) -> npt.NDArray[np.int32]: ...
def exact_belady(
    ids: npt.NDArray[np.int32], bounds: npt.NDArray[np.int64], capacity: int
) -> npt.NDArray[np.int32]: ...
