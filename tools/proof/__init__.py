# SPDX-License-Identifier: Apache-2.0
"""tools/prove: models, kill sweep, torture, negative controls and fuzzers, as one verdict."""
