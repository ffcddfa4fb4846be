# SPDX-License-Identifier: Apache-2.0
"""A real vLLM in an environment and a process of its own, for the demo and the tests."""
