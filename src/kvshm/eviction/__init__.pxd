# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
from kvshm.eviction.marks cimport Scorer, make_scorer, mark, score_fn
