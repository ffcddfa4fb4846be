# SPDX-License-Identifier: Apache-2.0
"""Engines on an arena that is too small for them, over a disk that is not, killed at random."""
