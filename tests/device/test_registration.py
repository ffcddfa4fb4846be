# SPDX-License-Identifier: Apache-2.0
"""Arena.register_device and what `kvshm stat` shows of it."""
import json
import os
import signal
import time

import kvshm
import pytest
from kvshm.records import DeviceState
from support.cli import kvshm_cli
from support.mock_device import Mock

MIB = 1 << 20

PROGRAM = """
import ctypes, json, sys
import kvshm
arena = kvshm.Arena.create(sys.argv[1], blocks=40, block_bytes="1MiB", pin="off", huge="off")
"""


@pytest.fixture
def mock(mock_path):
    made = Mock(mock_path)
    made._lib.mock_reset()
    yield made
    assert made.untidy() == {}


@pytest.fixture
def arena(arena_name, mock):
    with kvshm.Arena.create(arena_name, blocks=40, block_bytes="1MiB", pin="off", huge="off",
                            label="engine") as made:
        mock.watch(made)
        yield made


def test_a_mock_in_pieces(arena, mock):
    found = arena.register_device(mock.address, piece="16MiB")
    assert found == arena.device()
    assert (found.state, found.backend, found.references) == (DeviceState.REGISTERED, "mock", 1)
    assert (found.bytes, found.bytes_registered, found.pieces) == (40 * MIB, 40 * MIB, 3)
    assert (found.piece_blocks, found.reason, found.code) == (16, "", 0)
    assert arena.device_ranges() == [(0, 40, False)]
    (p,) = arena.processes()
    assert (p.device_state, p.device_bytes, p.device_memory) == (DeviceState.REGISTERED, 40 * MIB,
                                                                 True)
    assert arena.register_device(mock.address).references == 2
    arena.unregister_device()
    assert mock.seen()["unregisters"] == 0
    arena.unregister_device()
    assert mock.seen()["unregisters"] == 3 and mock.seen()["finished"] == 1
    with pytest.raises(kvshm.Misuse):
        arena.unregister_device()


def test_partly_and_required(arena, mock):
    lines = []
    kvshm.set_log(lambda level, text: lines.append(text))
    try:
        mock.set(fail_from=3)
        found = arena.register_device(mock.address, piece="16MiB")
        assert found.state == DeviceState.PARTLY and found.bytes_registered == 32 * MIB
        assert "block 32 of 40" in found.reason and "out of device memory" in found.reason
        assert arena.device_ranges() == [(0, 32, False)]
        with pytest.raises(kvshm.Unsupported, match="block 32 of 40"):
            arena.register_device(mock.address, mode="require")
        assert arena.device().references == 1
        arena.unregister_device()
        with pytest.raises(kvshm.Unsupported, match="out of device memory"):
            arena.register_device(mock.address, piece="16MiB", mode="require")
    finally:
        kvshm.set_log(None)
    said = [line for line in lines if "registered with mock" in line]
    assert len(said) == 1 and "33554432 of 41943040" in said[0], lines
    assert arena.device().state == DeviceState.REFUSED
    assert mock.seen()["ranges"] == 0


def test_stat_shows_it_per_process(arena, mock):
    mock.set(fail_from=3)
    arena.register_device(mock.address, piece="16MiB")
    (p,) = kvshm_cli("stat", "--json", arena.name).json["processes"]
    assert (p["device_state"], p["device_bytes"], p["device_memory"]) == ("partly", 32 * MIB, True)
    text = kvshm_cli("stat", arena.name).out
    (row,) = [line for line in text.splitlines() if " engine " in line]
    assert " partly 80% " in row
    assert "device_registered_total  2" in text or "device_registered_total 2" in text.replace(
        "  ", " ")


def test_in_the_background_and_its_limits(arena, mock):
    mock.set(bytes_per_second=40 * MIB)
    begun = time.monotonic()
    assert arena.register_device(mock.address, piece="2MiB", timeout=0).state == (
        DeviceState.REGISTERING)
    with pytest.raises(kvshm.TimedOut, match="it goes on"):
        arena.register_device(mock.address, timeout=0.2)
    assert time.monotonic() - begun < 0.8
    assert not arena.wait_device(0)
    assert 0 < arena.device().bytes_registered < 40 * MIB
    assert arena.wait_device(10)
    assert arena.device().bytes_registered == 40 * MIB


def test_a_signal_ends_the_waiting(arena, mock):
    mock.set(bytes_per_second=20 * MIB)

    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with pytest.raises(Rang):
            arena.register_device(mock.address, piece="2MiB")
        assert time.monotonic() - begun < 1
    finally:
        signal.signal(signal.SIGALRM, before)
    arena.unregister_device()
    assert mock.seen()["registers"] < 20


def test_slow_to_undo(arena_name, mock):
    """close() has its limit; the rest goes on, and others have all blocks at once."""
    with kvshm.Arena.create(arena_name, blocks=40, block_bytes="1MiB", pin="off") as other:
        mine = kvshm.Arena.attach(arena_name, pin="off")
        mine.register_device(mock.address, piece="16MiB")
        fill = mine.allocate(40)
        assert other.stats().blocks_free == 0
        mock.set(unregister_ms=400)
        begun = time.monotonic()
        with pytest.raises(kvshm.Busy, match="unregistered"):
            mine.close(timeout=0.1)
        assert time.monotonic() - begun < 0.6
        assert other.stats().blocks_free == 40
        assert [p.device_state for p in other.processes()] == [
            DeviceState.NONE, DeviceState.UNREGISTERING]
        with pytest.raises(kvshm.Closed):
            mine.stats()
        mine.close(timeout=10)
        assert mine.closed and len(other.processes()) == 1
        del fill


def test_arguments(arena, mock):
    for bad in ({"backend": "rocm"}, {"backend": None}, {"mode": "off"}, {"drain": 0},
                {"drain": 4000}, {"piece": "much"}, {"device": "x"}, {"timeout": -1}):
        with pytest.raises(kvshm.InvalidArgument):
            arena.register_device(**{"backend": mock.address, **bad})
    assert mock.seen()["registers"] == 0


def test_no_driver(arena):
    """Here, or with LD_LIBRARY_PATH pointing nowhere: it says so, and works on."""
    try:
        found = arena.register_device("cuda")
    except kvshm.Error as error:
        pytest.fail(f"auto never fails: {error}")
    if found.state == DeviceState.REGISTERED:
        pytest.skip("this host has a GPU: tools/gpu_check goes on from here")
    assert found.state == DeviceState.REFUSED and found.reason.startswith("no device: ")
    with pytest.raises(kvshm.Unsupported, match="no device"):
        arena.unregister_device()
        arena.register_device("cuda", mode="require")


def test_cuda_by_a_driver_without_a_gpu(worker, arena_name, fake_cuda_path):
    """The built-in backend, from the loader on, over a driver that notices misuse."""
    code = PROGRAM + """
found = arena.register_device("cuda", piece="16MiB", mode="require", device=1)
sys.path.insert(0, sys.argv[3])
from support.mock_device import Mock
mock = Mock(sys.argv[2])
refs = mock._lib.fake_primary_references(1)
seen = mock.seen()
arena.close()
say([found.backend, found.state, seen["registers"], refs, mock.untidy(),
     mock._lib.fake_primary_references(1), mock.seen()["unregisters"]])
"""
    tests = os.path.dirname(os.path.dirname(__file__))
    one = worker(code, arena_name, fake_cuda_path, tests, env={
        "LD_LIBRARY_PATH": str(fake_cuda_path.parent), "KVSHM_FAKE_CUDA_DEVICES": "2"})
    assert json.loads(json.dumps(one.hear(30))) == ["cuda", 2, 3, 1, {}, 0, 3]
