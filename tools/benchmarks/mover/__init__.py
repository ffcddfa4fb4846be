# SPDX-License-Identifier: Apache-2.0
"""What moving blocks between disk, memory and engine costs who computes meanwhile."""
