# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

def set_log(function: Callable[[int, str], object] | None) -> None: ...
