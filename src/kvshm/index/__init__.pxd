# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
from kvshm.index.identity cimport Identity
from kvshm.index.keychain cimport KeyChain
from kvshm.index.plan cimport MatchPlan
