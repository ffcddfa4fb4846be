# SPDX-License-Identifier: Apache-2.0
"""Which blocks a request needs and how it gets them: keys, the plan of a request, single flight,
leases; and a log of what was looked up. The library executes; what is decided, is decided here."""
from kvshm.index.flight import SingleFlight
from kvshm.index.identity import Identity
from kvshm.index.keychain import KeyChain
from kvshm.index.leases import LeaseRegistry, LiveLease
from kvshm.index.lookups import Lookup, LookupLog
from kvshm.index.plan import MatchPlan, plan
from kvshm.index.trace import TraceWriter

__all__ = [
    "Identity",
    "KeyChain",
    "LeaseRegistry",
    "LiveLease",
    "Lookup",
    "LookupLog",
    "MatchPlan",
    "SingleFlight",
    "TraceWriter",
    "plan",
]
