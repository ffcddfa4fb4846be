# SPDX-License-Identifier: Apache-2.0
"""kvshm.uring: the ring reads what is in the file, and the probe says what was refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

uring = pytest.importorskip("kvshm.uring")
try:
    uring.load()
except ImportError as e:
    pytest.skip(str(e), allow_module_level=True)

MIB = 1 << 20


def probe_as(body: str) -> dict[str, object]:
    """The probe's answer in a process of its own, after `body` has restricted it."""
    show = "print(json.dumps(uring.probe().asdict()))"
    code = f"import json\nfrom kvshm import uring\n{body}\n{show}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


SECCOMP = """
import ctypes, struct
X86, AARCH64 = 0xC000003E, 0xC00000B7
def refuse(first, last, answer):
    # load nr; first <= nr <= last -> errno, else allow
    program = [(0x20, 0, 0, 0), (0x35, 0, 2, first), (0x25, 1, 0, last),
               (0x06, 0, 0, 0x00050000 | answer), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    keep = ctypes.create_string_buffer(code)
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(keep))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, head, 0, 0) == 0, ctypes.get_errno()
"""


@pytest.fixture(scope="module")
def probed() -> object:
    found = uring.probe()
    if not found.available:
        pytest.skip(f"io_uring: {found.reason}")
    return found


@pytest.fixture()
def data(tmp_path: Path) -> tuple[Path, bytes]:
    content = os.urandom(5 * MIB + 123)
    path = tmp_path / "data"
    path.write_bytes(content)
    return path, content


def open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as e:
        pytest.skip(f"O_DIRECT on {path.parent}: {e.strerror}")


def test_ring_reads_what_the_file_holds(probed: object, data: tuple[Path, bytes]) -> None:
    path, content = data
    fd = open_direct(path)
    with uring.Ring() as ring, uring.aligned_buffer(6 * MIB) as buffer:
        assert ring.read(fd, buffer) == len(content)
        assert buffer[: len(content)] == content
    os.close(fd)


def test_scattered_reads_land_each_in_its_own_buffer(
    probed: object, data: tuple[Path, bytes]
) -> None:
    path, content = data
    fd = open_direct(path)
    places = [(n * MIB, uring.aligned_buffer(MIB)) for n in (4, 0, 5, 2)]
    with uring.Ring(entries=2) as ring:
        assert ring.read_many(fd, places, depth=64) == [MIB, MIB, 123, MIB]
    for (offset, buffer), length in zip(places, (MIB, MIB, 123, MIB), strict=True):
        assert buffer[:length] == content[offset:offset + length]
    os.close(fd)


def test_failed_read_raises_and_leaves_the_ring_usable(
    probed: object, data: tuple[Path, bytes]
) -> None:
    path, content = data
    with uring.Ring() as ring, uring.aligned_buffer(4096) as buffer:
        with pytest.raises(OSError) as failure:
            ring.read(-1, buffer)
        assert failure.value.errno == errno.EBADF
        with open(path, "rb") as file:
            assert ring.read(file.fileno(), buffer) == 4096
        assert buffer[:] == content[:4096]


def test_buffer_of_a_read_in_flight_cannot_be_freed(probed: object) -> None:
    end, start = os.pipe()
    buffer = uring.aligned_buffer(4096)
    with uring.Ring() as ring:
        ring.start_read(end, buffer, 0, 7)
        with pytest.raises(TimeoutError):
            ring.wait(0.05)
        with pytest.raises(BufferError):
            buffer.close()
        os.write(start, b"late")
        assert ring.wait(5.0) == (7, 4)
    assert buffer[:4] == b"late"
    buffer.close()
    os.close(end), os.close(start)


def test_ring_that_does_not_drain_is_abandoned_with_its_buffers(probed: object) -> None:
    end, start = os.pipe()
    buffer = uring.aligned_buffer(4096)
    ring = uring.Ring()
    ring.start_read(end, buffer, 0, 1)
    with pytest.raises(TimeoutError):
        ring.close(timeout=0.05)
    with pytest.raises(BufferError):
        buffer.close()
    with pytest.raises(ValueError):
        ring.start_nop(2)
    ring.close()
    os.close(end), os.close(start)


def test_read_only_buffer_is_refused(probed: object) -> None:
    with uring.Ring() as ring, pytest.raises(BufferError):
        ring.start_read(0, bytes(16), 0, 1)


def test_fork_child_is_told_and_the_parent_goes_on(probed: object) -> None:
    with uring.Ring() as ring:
        child = os.fork()
        if child == 0:
            try:
                ring.start_nop(1)
                os._exit(1)
            except RuntimeError:
                ring.close()
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ring.start_nop(2)
        assert ring.wait(5.0) == (2, 0)


def test_other_thread_is_refused_by_the_kernel(probed: object) -> None:
    if not probed.single_issuer:
        pytest.skip("kernel without SINGLE_ISSUER")
    caught: list[OSError] = []

    def use(ring: object) -> None:
        try:
            ring.start_nop(1)
        except OSError as e:
            caught.append(e)

    ring = uring.Ring()
    thread = threading.Thread(target=use, args=(ring,))
    thread.start()
    thread.join(10)
    assert [e.errno for e in caught] == [errno.EEXIST]


def test_probe_finds_what_the_tier_uses(probed: object) -> None:
    assert {"read", "write", "read_fixed", "write_fixed", "nop"} <= set(probed.opcodes)
    assert probed.registered_files and probed.registered_buffers
    assert len(probed.opcodes) <= probed.opcode_count
    with uring.Ring(plain=True) as ring:
        assert ring.flags & uring.load().lib.IORING_SETUP_SINGLE_ISSUER == 0


def test_memlock_limit_is_measured_to_the_page(probed: object) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give CAP_IPC_LOCK up")
    limit = 3 * MIB + 3 * 4096
    body = f"""
import os, resource
from kvshm import _uring_probe
uring.load()
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
os.setgid(65534), os.setuid(65534)
"""
    found = probe_as(body)
    assert found["available"] and found["memlock_applies"]
    # the ring's own pages count too, on some kernels
    assert limit - 16 * 4096 <= found["buffer_bytes"] <= limit
    assert probe_as("")["buffer_bytes"] == 64 * MIB


@pytest.mark.parametrize("answer", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
def test_seccomp_filter_is_named_as_the_reason(probed: object, answer: int) -> None:
    found = probe_as(f"{SECCOMP}\nrefuse(425, 427, {answer})")
    assert not found["available"] and found["errno"] == answer and found["seccomp"] == 2
    assert "seccomp" in found["reason"]


def test_filter_on_enter_alone_is_found(probed: object) -> None:
    found = probe_as(f"{SECCOMP}\nrefuse(426, 426, {errno.EPERM})")
    assert not found["available"] and "io_uring_setup works" in found["reason"]


@pytest.mark.parametrize(
    "state, words",
    [
        ({"errno": errno.EPERM, "sysctl": 2}, "io_uring_disabled is 2"),
        ({"errno": errno.ENOSYS}, "has no io_uring"),
        ({"errno": errno.EPERM}, "security module"),
        ({"errno": errno.ENOMEM}, "RLIMIT_MEMLOCK"),
    ],
)
def test_reason_of_a_refusal(state: dict[str, int], words: str) -> None:
    from kvshm._uring_probe import UringProbe, _why

    assert words in _why(UringProbe(**state))


def test_missing_binding_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ImportError("no", name="_cffi_backend")

    monkeypatch.setattr(uring.importlib, "import_module", refuse)
    with pytest.raises(ImportError, match=r"kvshm\[tools\]"):
        uring.probe()
