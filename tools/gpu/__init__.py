# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check: registration, paged copies and late device writes on a real GPU."""
