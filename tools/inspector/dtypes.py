# SPDX-License-Identifier: Apache-2.0
"""The records of layout 1 as numpy types. tests/unit/test_cli_layout.py holds them against C."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import layout


def _record(size: int, fields: list[tuple[Any, ...]]) -> np.dtype[np.void]:
    """(name, type, offset[, shape]) each; all little-endian."""
    names, formats, offsets = [], [], []
    for name, kind, offset, *shape in fields:
        names.append(name)
        formats.append((kind, shape[0]) if shape else kind)
        offsets.append(offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


GEOMETRY = np.dtype([(name, "<u8") for name in layout.Geometry._fields])

POLICY = _record(layout.POLICY, [
    ("version", "<u8", 0), ("name", "S32", 8), ("sample", "<u4", 40), ("flags", "<u4", 44),
    ("age_period", "<u4", 48), ("young", "<u4", 52), ("small", "<u4", 56),
    ("touch_mask", "<u4", 60), ("levels", "<u4", 64, (16,))])

FOREIGN = _record(layout.FOREIGN, [
    ("count", "<u8", 0), ("version", "<u8", 8), ("at", "<u8", 16), ("pid", "<u8", 24),
    ("identity", "S1024", 32)])

TIER = _record(layout.TIER, [
    ("state", "<u8", 0), ("done", "<u8", 8), ("total", "<u8", 16), ("kept", "<u8", 24),
    ("path", "S512", 32)])

TIER_LINE = _record(layout.TIER_LINE, [
    ("word", "<u8", 0), ("queued", "<u8", 8), ("in_flight", "<u8", 16), ("parked", "<u8", 24)])

SUPERBLOCK = _record(layout.SUPERBLOCK, [
    ("magic", "<u8", 0), ("layout_version", "<u4", 8), ("superblock_bytes", "<u4", 12),
    ("layout_hash", "<u8", 16), ("uuid", "V16", 24), ("created_at", "<u8", 40),
    ("creator_pid", "<u8", 48), ("page_bytes", "<u8", 56), ("dead", "<u4", 64),
    ("age_epoch", "<u4", 68), ("space_epoch", "<u4", 72), ("limits", "<u4", 76),
    ("pin_budget", "<u8", 80), ("tenants_seen", "<u8", 88, (layout.TENANTS // 64,)),
    ("space", "<u4", 128),
    ("tick", "<u4", 192), ("aged_at", "<u4", 256), ("marks_head", "<u8", 264),
    ("marks_tail", "<u8", 272), ("events_head", "<u8", 280), ("geometry", GEOMETRY, 320),
    ("fingerprint", "V16", 480), ("raw", "<u4", 496), ("numa", "<i4", 500),
    ("identity_length", "<u4", 504),
    ("name", "S64", 508), ("identity", "S1024", layout.IDENTITY_AT),
    ("policy", POLICY, layout.POLICY_AT),
    ("charged_group", "S256", 1728), ("foreign", FOREIGN, 1984),
    ("epochs", "<u8", 3040, (layout.SLOTS,)), ("pinned", "<u8", 3456),
    ("recounted_at", "<u8", 3464), ("tier", TIER, layout.TIER_AT)])

TENANT = _record(layout.TENANT, [
    ("name_hash", "<u8", 0), ("quota", "<u8", 8), ("used", "<i8", 16), ("weight", "<u4", 24),
    ("name", "S32", 32)])

MOVER = _record(layout.MOVER, [("rule", "<u4", 0), ("slot", "<u4", 4)])

LANE = _record(layout.LANE, [
    ("tail", "<u8", 0), ("head", "<u8", 64), ("done", "<u8", 72), ("due", "<u8", 80)])

LANE_ENTRY = np.dtype([("what", "<u8", (2,)), ("state", "<u8"), ("turn", "<u8")])

GHOST = np.dtype([("tag", "<u8"), ("gone", "<u8")])

USES = np.dtype([("words", "<u8", (8,))])

SHADOW = _record(layout.SHADOW_HEADER, [
    ("cursors", "<u8", 0, (layout.SLOTS,)), ("records", "<u8", 384), ("lost", "<u8", 392),
    ("hits", "<f8", 400, (layout.SHADOWS,)), ("weight", "<u8", 440), ("switches", "<u8", 448),
    ("at", "<u8", 456), ("published", "<u8", 464)])

LEASE = np.dtype([("tag", "<u8"), ("start", "<u4"), ("count", "<u4")])

SLOT = _record(layout.SLOT, [
    ("used", "<u4", 0), ("pid", "<i4", 4), ("uid", "<u4", 8), ("device_memory", "<u4", 12),
    ("start_time", "<u8", 16), ("attached_at", "<u8", 24), ("pid_ns", "<u8", 32),
    ("drain_until", "<u8", 40), ("quota", "<u8", 48), ("label", "S64", 56),
    ("device_bytes", "<u8", 120), ("tier", TIER_LINE, 128),
    ("stats", "<u8", layout.STATS_AT, (layout.STAT_ROOM,)),
    ("histograms", "<u8", 704, (layout.HISTOGRAMS, layout.BUCKETS)),
    ("leases", LEASE, layout.LEASES_AT, (layout.LEASE_LINES,)),
    ("touches", "<u8", 21184, (layout.TOUCH_RING,))])

HOT = _record(layout.HOT, [
    ("word", "<u8", 0), ("key", "<u8", 8, (2,)), ("seq", "<u8", 24), ("fut", "<u4", 32),
    ("stamp", "<u4", 36), ("parent", "<u4", 40), ("parent_check", "<u4", 44), ("child", "<u4", 48),
    ("sibling", "<u4", 52), ("tenant", "<u2", 56), ("flags", "u1", 58), ("priority", "u1", 59),
    ("freq_depth", "<u4", 60)])

COLD = _record(layout.COLD, [
    ("check", "<u8", 0, (2,)), ("parts", "<u8", 16), ("nparts", "u1", 24), ("primary", "<u4", 28),
    ("length", "<u4", 32),
    ("expires", "<u4", 36), ("identity", "<u4", 40), ("calms", "<u4", 44), ("user", "<u8", 48),
    ("self_check", "<u8", 56)])
