# SPDX-License-Identifier: Apache-2.0
"""TraceWriter: what is looked up, written down; several writers, a full queue, a file gone bad."""
from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm.index import Lookup, LookupLog, TraceWriter, trace

BLOCK = 16


def keys(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, 16), np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_format_to_the_letter(path: Path) -> None:
    """A reader of its own: the header, then a line a request."""
    before = time.time()
    writer = TraceWriter(path, BLOCK)
    asked = keys(5)
    assert writer.add(asked, 5 * BLOCK + 3)
    time.sleep(0.2)
    assert writer.add(asked[:2], 2 * BLOCK, "a tenant")
    assert writer.add(keys(0), 7, b"another")
    assert writer.add(asked[:3], 50, "a tenant")
    writer.close()
    head, *found = lines(path)
    assert {name: head[name] for name in ("format", "version", "block_tokens", "salted")} == {
        "format": "kvshm-lookups", "version": 1, "block_tokens": BLOCK, "salted": True}
    assert before - 1 <= head["started"] <= time.time()
    assert [(one["tenant"], one["tokens"]) for one in found] == [
        (0, 5 * BLOCK + 3), (1, 2 * BLOCK), (2, 7), (1, 50)]
    assert 0 <= found[0]["t"] < 5 and 0.15 < found[1]["t"] - found[0]["t"] < 5
    ids = [np.frombuffer(base64.b64decode(one["ids"]), "<u8") for one in found]
    assert [len(one) for one in ids] == [5, 2, 0, 3] and len(set(ids[0].tolist())) == 5
    assert (ids[0][:2] == ids[1]).all() and (ids[0][:3] == ids[3]).all()
    assert (writer.recorded, writer.dropped) == (4, 0)
    log = LookupLog(path)
    assert log.block_tokens == BLOCK and log.started == head["started"]
    again = list(log)
    assert isinstance(again[0], Lookup) and (again[3].ids == ids[3]).all() and log.skipped == 0
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_nothing_of_a_key_or_a_tenant_is_in_it_and_nothing_joins_two(tmp_path: Path) -> None:
    asked = keys(8)
    names = [tmp_path / "a", tmp_path / "b"]
    for name in names:
        writer = TraceWriter(name, BLOCK)
        writer.add(asked, 8 * BLOCK, "salt-of-a-tenant")
        writer.close()
    a, b = ([*LookupLog(name)][0].ids for name in names)
    assert not set(a.tolist()) & set(b.tolist())
    parts = np.ascontiguousarray(asked).view("<u8").reshape(-1).tolist()
    assert not set(a.tolist()) & set(parts)
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert b"salt-of" not in data and not any(bytes(key[:6]) in data for key in asked)
    secret = json.loads((tmp_path / "a.key").read_text().splitlines()[0])["salt"]
    assert secret not in names[0].read_text() and len(secret) == 64
    assert oct((tmp_path / "a.key").stat().st_mode & 0o777) == "0o600"


WRITER = """\
import sys, numpy as np
from kvshm.index import TraceWriter
writer = TraceWriter(sys.argv[1], 16)
mine = int(sys.argv[2])
for i in range(150):
    keys = np.random.default_rng(i).integers(0, 256, (200, 16), np.uint8)
    while not writer.add(keys, 3200 + mine, f"tenant {i % 7 + mine}"):
        pass
writer.close(20)
"""


def test_several_processes_append_to_one_file(path: Path) -> None:
    """No line is torn, equal keys have one id, equal tenants one number."""
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(i)])
               for i in range(2)]
    assert [one.wait(60) for one in running] == [0, 0]
    log = LookupLog(path)
    found = list(log)
    assert len(found) == 300 and log.skipped == 0
    ids = [[one.ids.tolist() for one in found if one.tokens == 3200 + mine] for mine in range(2)]
    assert len(ids[0]) == 150 and ids[0] == ids[1]
    numbers: dict[int, set[int]] = {}
    at = [0, 0]
    for one in found:
        mine = one.tokens - 3200
        numbers.setdefault(at[mine] % 7 + mine, set()).add(one.tenant)
        at[mine] += 1
    assert sorted(len(one) for one in numbers.values()) == [1] * 8
    assert set.union(*numbers.values()) == set(range(1, 9))


def test_add_never_waits_and_drops_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch,
                                               caplog: pytest.LogCaptureFixture) -> None:
    """A disk that takes nothing for a while: the queue fills, and add goes on at its own speed."""
    monkeypatch.setattr(trace, "QUEUE", 64)
    writer = TraceWriter(path, BLOCK)
    go, inside = threading.Event(), threading.Event()
    append = writer._file.append

    def stuck(data: bytes) -> None:
        inside.set()
        assert go.wait(30)
        append(data)

    monkeypatch.setattr(writer._file, "append", stuck)
    writer.add(keys(3), 48)
    assert inside.wait(10)
    begin = time.perf_counter()
    taken = [writer.add(keys(3), 48) for _ in range(100)]
    assert time.perf_counter() - begin < 1
    assert taken == [True] * 64 + [False] * 36 and writer.dropped == 36
    go.set()
    with caplog.at_level(logging.INFO, logger="kvshm"):
        writer.close()
    assert "65 requests recorded, 36 dropped" in caplog.text
    assert len(list(LookupLog(path))) == writer.recorded == 65


def test_bytes_in_the_queue_are_bounded_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "QUEUE_BYTES", 100 * 16)
    monkeypatch.setattr(trace, "PAUSE", 1.0)
    writer = TraceWriter(path, BLOCK)
    assert writer.add(keys(60), 960) and not writer.add(keys(60), 960) and writer.add(keys(40), 640)
    writer.close(10)
    assert [len(one.ids) for one in LookupLog(path)] == [60, 40]


def test_the_limit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kvshm")
    writer = TraceWriter(path, BLOCK, limit=4096)
    for i in range(5):
        writer.add(keys(100, i), 1600)  # 1100 bytes a line
        time.sleep(0.15)
    assert not writer.add(keys(1), 16)
    writer.close()
    assert path.stat().st_size <= 4096 and len(list(LookupLog(path))) == 3
    assert caplog.text.count("at its limit of 4096 bytes") == 1
    assert "3 requests recorded, 3 dropped" in caplog.text
    with pytest.raises(kvshm.InvalidArgument, match="limit"):
        TraceWriter(path, BLOCK, limit=-1)


def test_an_error_of_the_file_ends_the_recording_with_one_warning(
        path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    writer = TraceWriter(path, BLOCK)

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer._file, "append", full)
    for _ in range(3):
        writer.add(keys(1), 16)
        time.sleep(0.12)
    assert caplog.text.count("No space left on device") == 1
    writer.close()
    assert (writer.recorded, writer.dropped) == (0, 3)
    with pytest.raises(OSError):
        TraceWriter("/dev/null/trace", BLOCK)


def test_a_file_is_gone_on_with_and_a_foreign_one_is_refused(path: Path, tmp_path: Path) -> None:
    for i in range(2):
        writer = TraceWriter(path, BLOCK)
        writer.add(keys(4), 64, "one")
        writer.close()
        if not i:
            with open(path, "ab") as file:
                file.write(b'{"t":3,"ten')  # its writer was killed there
    log = LookupLog(path)
    first, second = log
    assert (first.ids == second.ids).all() and first.tenant == second.tenant == 1
    assert log.skipped == 1
    with pytest.raises(kvshm.InvalidArgument, match="block_tokens 16, this one is of 32"):
        TraceWriter(path, 32)
    os.unlink(f"{path}.key")  # who has lost it cannot go on
    with pytest.raises(kvshm.InvalidArgument, match="salt"):
        TraceWriter(path, BLOCK)
    other = tmp_path / "notes.txt"
    other.write_text("not ours\n")
    with pytest.raises(kvshm.InvalidArgument, match="name another file"):
        TraceWriter(other, BLOCK)
    assert other.read_text() == "not ours\n"
    with pytest.raises(kvshm.InvalidArgument, match="no log of look-ups"):
        LookupLog(other)


def test_a_new_file_has_a_new_secret(path: Path) -> None:
    ids = []
    for _ in range(2):
        writer = TraceWriter(path, BLOCK)
        writer.add(keys(4), 64)
        writer.close()
        ids.append(list(LookupLog(path))[0].ids.tolist())
        path.unlink()
    assert ids[0] != ids[1]


def test_a_forked_child_records_nothing(path: Path) -> None:
    writer = TraceWriter(path, BLOCK)
    pid = os.fork()
    if not pid:
        ok = writer.add(keys(2), 32) is False
        writer.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert writer.add(keys(2), 32)
    writer.close()
    assert len(list(LookupLog(path))) == 1


def test_what_waits_is_written_at_the_end_of_the_process(path: Path) -> None:
    code = ("import sys, numpy as np; from kvshm.index import TraceWriter\n"
            "TraceWriter(sys.argv[1], 16).add(np.zeros((2, 16), np.uint8), 32)")
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    assert len(list(LookupLog(path))) == 1


def test_adding_is_cheap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "PAUSE", 2.0)
    writer = TraceWriter(path, BLOCK)
    asked = keys(10)
    times = []
    for _ in range(1000):
        begin = time.perf_counter()
        writer.add(asked, 160)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[500] < 20e-6
    writer.close(10)
