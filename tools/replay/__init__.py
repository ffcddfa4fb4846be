# SPDX-License-Identifier: Apache-2.0
"""Behind `kvshm replay`: what a policy, and one shared cache, would do for a recorded load."""
