# SPDX-License-Identifier: Apache-2.0
"""Workers in milliseconds: forked from a process that has imported numpy and kvshm, and no more.

The nursery itself never opens an arena, so what it forks is as good as a new interpreter.
"""
from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from support.worker import PRELUDE, Worker

# Takes {code, args, env} with three descriptors, forks, answers with the pid; {wait: pid} is
# answered with its exit status, or None while it lives.
_NURSERY = r'''
import array, json, os, signal, socket, sys
import numpy, kvshm
sock = socket.socket(fileno=int(sys.argv[1]))
ended = {}
def status(pid):
    if pid not in ended:
        got, how = os.waitpid(pid, os.WNOHANG)
        if not got:
            return None
        ended[pid] = os.waitstatus_to_exitcode(how)
    return ended[pid]
code = None
while True:
    data, ancillary, flags, _ = sock.recvmsg(1 << 20, socket.CMSG_LEN(12))
    if not data:
        os._exit(0)
    fds = array.array("i")
    for _, _, part in ancillary:
        fds.frombytes(part)
    request = json.loads(data)
    if "wait" in request:
        sock.send(json.dumps(status(request["wait"])).encode())
        continue
    pid = os.fork()
    if pid == 0:
        break
    for fd in fds:
        os.close(fd)
    sock.send(json.dumps(pid).encode())
sock.close()
for to, fd in enumerate(fds):
    os.dup2(fd, to)
    os.close(fd)
os.environ.update(request["env"])
sys.argv = ["worker", *request["args"]]
program = compile(request["code"], "<worker>", "exec")
for name in ("array", "json", "sock", "ended", "status", "fds", "request", "data", "ancillary"):
    globals().pop(name, None)
# the tail of the program is the worker: its exceptions and exits are those of the interpreter
exec(program, {"__name__": "__main__"})
'''


class _Forked:
    """What Worker needs of subprocess.Popen, for a process that the nursery has forked."""

    def __init__(self, nursery: Nursery, pid: int, stdin: Any, stdout: Any) -> None:
        self.nursery, self.pid, self.stdin, self.stdout = nursery, pid, stdin, stdout
        self._pidfd: int | None = os.pidfd_open(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self.nursery.request({"wait": self.pid})
            if self._status is not None and self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        return self._status

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while True:
            status = self.poll()
            if status is not None:
                return status
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            assert self._pidfd is not None
            select.select([self._pidfd], [], [], left)

    def send_signal(self, signum: int) -> None:
        if self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, signum)


class ForkedWorker(Worker):
    """A Worker that the nursery forks."""

    def __init__(self, nursery: Nursery, code: str, *args: object,
                 env: dict[str, str] | None = None) -> None:
        self._nursery = nursery
        super().__init__(code, *args, env=env)

    def _start(self, code: str, args: list[str], env: dict[str, str], under: list[str]) -> Any:
        assert not under
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        pid = self._nursery.request({"code": PRELUDE + code, "args": args, "env": env},
                                    [in_read, out_write, self._stderr.fileno()])
        os.close(in_read)
        os.close(out_write)
        return _Forked(self._nursery, pid, os.fdopen(in_write, "wb"), os.fdopen(out_read, "rb", 0))


class Nursery:
    """The process that forks. One at a time may use it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", _NURSERY, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env={**os.environ, **env}, stdin=subprocess.DEVNULL)
        theirs.close()
        self._sock.settimeout(60)

    def request(self, value: Any, fds: list[int] | None = None) -> Any:
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._sock.sendmsg([json.dumps(value).encode()], extra)
        answer = self._sock.recv(65536)
        assert answer, "the nursery ended"
        return json.loads(answer)

    def close(self) -> None:
        self._sock.close()
        self._process.kill()
        self._process.wait(30)
