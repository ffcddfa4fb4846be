# SPDX-License-Identifier: Apache-2.0
"""The demo engine: real workers, each a process with a transformer of its own, on one arena."""
