# SPDX-License-Identifier: Apache-2.0
"""The command `kvshm`. docs/inspector.md describes its verbs and documents."""
