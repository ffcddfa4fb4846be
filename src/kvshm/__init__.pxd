# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""`cimport kvshm` / `from kvshm cimport Arena`: the classes; kvshm.ckvshm has the C functions."""
from kvshm.core cimport Arena
from kvshm.fill cimport Fill
from kvshm.index.identity cimport Identity
from kvshm.lease cimport Lease
from kvshm.views cimport View
