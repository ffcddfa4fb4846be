"""Policies for kvshm.eviction, in the three ways that there are to write one."""
from kv_policies.fair import FairMarker, largest_tenant_first
from kv_policies.heads import HeadKeeper
from kv_policies.table import HalfLife

__all__ = ["FairMarker", "HalfLife", "HeadKeeper", "largest_tenant_first"]
