# SPDX-License-Identifier: Apache-2.0
"""Reads tier files (docs/format.md) without the library: its own layout, its own io_uring ring."""
