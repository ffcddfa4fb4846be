# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
from kvshm.ckvshm cimport kvshm_policy

cdef int fill_in(kvshm_policy *c, object policy) except -1
