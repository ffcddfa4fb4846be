# SPDX-License-Identifier: Apache-2.0
"""The identity under which the workers' blocks are shared: all that their bytes depend on."""

from __future__ import annotations

import kvshm
import torch

from .settings import Settings


def identity_of(settings: Settings) -> kvshm.Identity:
    model = settings.model
    return kvshm.Identity(
        model="kvshm-demo-tiny" if settings.tiny else "kvshm-demo",
        weights=model.fingerprint(torch.__version__),
        dtype="float32",
        # Layer, K or V, head, token, channel; of all layers together, or by groups of them.
        layout="LCHTD" if settings.layer_groups == 1 else f"LCHTD/{settings.layer_groups}",
        block_tokens=settings.block_tokens,
    )
