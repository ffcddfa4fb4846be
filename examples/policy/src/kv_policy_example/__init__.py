# SPDX-License-Identifier: Apache-2.0
"""Two policies: kv_policy_example.heads:policy in Cython, kv_policy_example.cost:Cheapest in
Python."""
