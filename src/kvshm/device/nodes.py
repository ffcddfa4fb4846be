# SPDX-License-Identifier: Apache-2.0
"""The NUMA node of an engine's KV memory: measured, None where the host does not tell."""
from __future__ import annotations

from pathlib import Path
from typing import Any


def node_of_memory(address: int, maps: str = "/proc/self/numa_maps") -> int | None:
    """The node that has most pages of the mapping around `address`."""
    best: dict[int, int] = {}
    try:
        with open(maps, encoding="ascii", errors="replace") as lines:
            for line in lines:
                start, *words = line.split()
                if int(start, 16) > address:
                    break
                best = {int(n): int(pages) for n, _, pages in (
                    word[1:].partition("=") for word in words
                    if word[:1] == "N" and word[1:2].isdigit())}
    except (OSError, ValueError):
        return None
    return max(best, key=lambda node: best[node], default=None)


def node_of_device(torch: Any, device: Any, root: str = "/sys/bus/pci/devices") -> int | None:
    """Of the PCI device, as the kernel has it; a host with one node may say -1."""
    try:
        p = torch.cuda.get_device_properties(device)
        name = f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
        node = int(Path(root, name, "numa_node").read_text(encoding="ascii"))
    except (AttributeError, OSError, ValueError, RuntimeError, AssertionError):
        return None
    return node if node >= 0 else None
