# SPDX-License-Identifier: Apache-2.0
"""tools/bench peers: what a look-up costs here and in the caches that others use."""
