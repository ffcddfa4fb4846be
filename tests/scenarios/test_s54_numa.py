# SPDX-License-Identifier: Apache-2.0
"""S54: placement that was asked for and cannot be had."""
import errno
import os
import platform

import pytest
from support.hosts import refusing

MBIND, SET_MEMPOLICY, GET_MEMPOLICY = 237, 238, 239
NODES = len([n for n in os.listdir("/sys/devices/system/node") if n[4:].isdigit()]
            ) if os.path.isdir("/sys/devices/system/node") else 1
CREATE = ("a = kvshm.Arena.create({name!r}, size='16MiB', block_bytes=65536, numa={numa!r}, "
          "huge='off', pin='off')")


@pytest.mark.parametrize("numa", [0, "auto", "interleave"])
def test_possible(player, arena_name, numa):
    one = player()
    one.do(CREATE.format(name=arena_name, numa=numa))
    node = one.get("a.info().numa")
    assert node in range(-1, NODES), "as measured"
    if numa == 0:
        assert node in (0, -1)
    assert one.get("log") == []
    assert "libnuma" not in open(f"/proc/{one.pid}/maps").read()


@pytest.mark.parametrize("numa", [NODES, 63, 1000, -3])
def test_no_such_node(player, arena_name, numa):
    one = player()
    error = one.fails(CREATE.format(name=arena_name, numa=numa))
    assert error.kind == "Unsupported"
    assert str(numa) in error.text and f"0-{NODES - 1}" in error.text
    assert not os.path.exists(f"/dev/shm/kvshm.{arena_name}")


@pytest.mark.parametrize("numa", ["elsewhere", 1.5, None, 2 ** 40])
def test_no_node_at_all(player, arena_name, numa):
    error = player().fails(CREATE.format(name=arena_name, numa=numa))
    assert error.kind == "InvalidArgument" and "numa" in error.text


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter knows x86-64 only")
@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
def test_policy_calls_refused(player, new_name, refusal):
    one = player()
    one.do(refusing([MBIND, SET_MEMPOLICY, GET_MEMPOLICY], refusal))
    one.do(CREATE.format(name=new_name(), numa="auto"))
    assert one.get("a.info().numa") == -1, "not measured, so not claimed"
    one.do("lease = store(a, raw_keys(0, 10))")
    assert one.get("verify(lease, raw_keys(0, 10))") == []
    if NODES == 1 and refusal == errno.ENOSYS:  # a kernel without NUMA: its one node is node 0
        one.do(CREATE.format(name=new_name(), numa=0))
        return
    error = one.fails(CREATE.format(name=new_name(), numa=0))
    assert error.kind == "Unsupported"
    assert "mbind" in error.text and os.strerror(refusal) in error.text
