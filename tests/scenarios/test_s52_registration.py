# SPDX-License-Identifier: Apache-2.0
"""S52, S53: registration in pieces, by three clients; again and again; beside somebody else's."""
import time

import kvshm
import pytest
from kvshm.records import DeviceState
from support.cli import kvshm_cli

MIB = 1 << 20
CLIENT = """
    from support.mock_device import Mock
    mock = Mock({path!r})
    mock.set(cap=16 << 20)
    a = kvshm.Arena.open({name!r}, blocks=100, block_bytes='1MiB', pin='off', label={label!r})
    mock.watch(a)
    def registered(**options):
        d = a.register_device(mock.address, **options)
        return [d.state, d.bytes_registered >> 20, d.reason]
"""


@pytest.fixture
def client(player, arena_name, mock_path):
    def make(label):
        one = player()
        one.do(CLIENT.format(path=str(mock_path), name=arena_name, label=label), timeout=30)
        return one
    return make


def tidy(one):
    one.do("a.close()", timeout=20)
    assert one.get("mock.untidy()") == {}


def test_pieces_under_a_cap(client):
    """S52: 100 MiB, at most 16 MiB a call: asked for so, told so by nobody."""
    one, other = client("told"), client("finds")
    assert one.get("registered(piece='16MiB', mode='require')") == [DeviceState.REGISTERED, 100, ""]
    assert one.get("mock.seen()['registers']") == 7
    assert other.get("registered(mode='require')") == [DeviceState.REGISTERED, 100, ""]
    assert other.get("mock.seen()['largest']") == 100 * MIB, "the first call finds the cap"
    assert other.get("mock.seen()['pending']") == 0
    for each in (one, other):
        tidy(each)


def test_one_of_three_is_refused(client, arena_name):
    """S52: it goes on partly, and says so for itself; or rolls back."""
    crew = {label: client(label) for label in ("one", "two", "three")}
    crew["two"].do("mock.set(fail_from=3)")
    for label, one in crew.items():
        state, mebibytes, reason = one.get("registered(piece='16MiB')")
        if label == "two":
            assert (state, mebibytes) == (DeviceState.PARTLY, 32)
            assert "block 32 of 100" in reason and "out of device memory" in reason
            assert [text for _, text in one.get("log")] == [
                f"arena {arena_name}: 33554432 of 104857600 bytes are registered with mock, "
                f"{reason}; copies of the other blocks are slower"]
        else:
            assert (state, mebibytes, reason) == (DeviceState.REGISTERED, 100, "")
    shown = {p["label"]: (p["device_state"], p["device_bytes"] // MIB)
             for p in kvshm_cli("stat", "--json", arena_name).json["processes"]}
    assert shown == {"one": ("registered", 100), "two": ("partly", 32),
                     "three": ("registered", 100)}
    two = crew["two"]
    two.do("a.unregister_device()")
    assert two.fails("registered(piece='16MiB', mode='require')").kind == "Unsupported"
    assert two.get("mock.seen()['ranges']") == 0
    # All of them work, registered or not.
    two.do("store(a, raw_keys(0, 5)).release()")
    assert crew["one"].get("len(a.match(raw_keys(0, 5)))") == 5
    for one in crew.values():
        tidy(one)


def test_attached_twice_and_a_hundred_times(client, arena_name):
    """S53."""
    one = client("again")
    one.do(f"""
        b = kvshm.Arena.attach({arena_name!r}, pin='off')
        for arena in (a, b, a):
            arena.register_device(mock.address, piece='16MiB')
        assert mock.seen()['registers'] == 14, "one for each mapping, the second is counted"
        a.unregister_device()
        assert mock.seen()['unregisters'] == 0
        a.unregister_device()
        assert mock.seen()['unregisters'] == 7
        b.close()
        assert mock.seen()['unregisters'] == 14
        for n in range(100):
            with kvshm.Arena.attach({arena_name!r}, pin='off') as c:
                c.register_device(mock.address, piece='16MiB', mode='require')
                if n % 3 == 0:
                    c.unregister_device()
        seen = mock.seen()
        assert seen['registers'] == seen['unregisters'] == 714, seen
    """, timeout=60)
    tidy(one)


def test_beside_somebody_elses(client):
    """S53: all of it, or a page of it, is registered by another component."""
    one = client("beside")
    one.do("""
        data = mock.data(a)
        mock.foreign(data + (50 << 20) - 4096, 4096)
        assert registered(piece='16MiB')[:2] == [kvshm.DeviceState.PARTLY, 99]
        assert a.device_ranges() == [(0, 49, False), (50, 50, False)]
        a.unregister_device()
        mock.foreign(data, (50 << 20) - 4096)
        mock.foreign(data + (50 << 20), 50 << 20)
        assert registered(piece='16MiB', mode='require') == [kvshm.DeviceState.REGISTERED, 100, '']
        assert a.device().bytes_foreign == 100 << 20
        assert a.stats().device_foreign_total == 7
        a.unregister_device()
        assert mock.seen()['foreign_ranges'] == 3
    """)
    tidy(one)


@pytest.mark.parametrize("first", ["detach", "context"])
def test_the_context_is_gone(client, first):
    """S53: detach before and after the device's context is gone."""
    one = client("gone")
    one.do("registered(piece='16MiB', mode='require')")
    if first == "context":
        one.do("mock.set(gone=1)")
    begun = time.monotonic()
    one.do("a.close()")
    assert time.monotonic() - begun < 5
    seen = one.get("mock.seen()")
    assert seen["unregisters"] == 7 and seen["pending"] == seen["leaked"] == seen["unmapped"] == 0
    assert not [text for _, text in one.get("log") if "register" in text or "registration" in text]
    assert one.end() == 0


def test_at_the_end_of_the_interpreter(client, arena_name):
    """Nobody closes it: the process ends in order all the same, and leaves nothing behind."""
    one = client("ends")
    one.do("registered(piece='16MiB')")
    assert one.end() == 0
    with kvshm.Arena.attach(arena_name, pin="off") as arena:
        deadline = time.monotonic() + 5
        while len(arena.processes()) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(arena.processes()) == 1 and arena.is_valid() == []
