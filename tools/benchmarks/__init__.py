# SPDX-License-Identifier: Apache-2.0
"""tools/bench: what kvshm costs, beside its references in the same run (docs/results)."""
