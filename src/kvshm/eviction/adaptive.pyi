# SPDX-License-Identifier: Apache-2.0
from kvshm.attach import Attachment

def step(arena: Attachment) -> int: ...
