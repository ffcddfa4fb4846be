# SPDX-License-Identifier: Apache-2.0
"""Reads arenas from outside, without the core: read-only mapping, no slot, no lock taken.

It knows layout 1 from docs/format.md alone, so it also serves as a second opinion on what the core
wrote, and works on an arena whose processes are all stopped or dead. Other layouts are told apart
but not read.
"""
