# SPDX-License-Identifier: Apache-2.0
"""A running engine by its OpenAI-compatible interface: which model it has, and one prompt sent."""
from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .failures import NOT_READY, USAGE, Failure

_LARGEST = 4 << 20  # of a reply


class EngineError(Exception):
    """What it said, or why nothing was heard."""


@dataclass
class Answer:
    """cached_tokens: None where the engine does not tell."""

    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float


class Engine:
    """deadline: of time.monotonic(), for all that is asked together."""

    def __init__(self, url: str, model: str | None, key: str | None, deadline: float) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError:
            self._host = None
        if self._host is None or parts.scheme not in ("http", "https") or parts.query:
            raise Failure(USAGE, "", f"--engine {url}: no such URL",
                          "wanted http://HOST:PORT, where the engine serves /v1/completions")
        self.url, self._secure, self._key = url, parts.scheme == "https", key
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._deadline = deadline
        self.model = model if model is not None else self._first_model()

    def _first_model(self) -> str:
        try:
            return str(self._ask("GET", "/v1/models")["data"][0]["id"])
        except EngineError as e:
            raise Failure(NOT_READY, "", f"--engine {self.url}: {e}",
                          "is it up, and is that its address?") from None
        except (KeyError, IndexError, TypeError):
            raise Failure(USAGE, "", f"--engine {self.url}: it names no model",
                          "--model NAME") from None

    def send(self, prompt: str | list[int], salt: str | None) -> Answer:
        """Computed once, for one token of output."""
        body: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": 1,
                                "temperature": 0, "stream": False}
        if salt is not None:
            body["cache_salt"] = salt
        begun = time.monotonic()
        found = self._ask("POST", "/v1/completions", body)
        usage = found.get("usage") if isinstance(found, dict) else None
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Answer(_count(usage.get("prompt_tokens")), _count(cached),
                      round(time.monotonic() - begun, 3))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise EngineError("no time is left for it")
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(str(self._host), self._port, timeout=left)
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        late = threading.Event()
        timer = None
        try:
            connection.connect()
            # Time-outs of a socket are of each call; this one is of the whole exchange.
            timer = threading.Timer(left, _cut, [connection.sock, late])
            timer.daemon = True
            timer.start()
            connection.request(method, self._path + path,
                               None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            data = reply.read(_LARGEST + 1)
        except (OSError, http.client.HTTPException) as e:
            if late.is_set() or isinstance(e, TimeoutError):
                raise EngineError(f"no answer in {left:.3g} s") from None
            raise EngineError(_why(e)) from None
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if late.is_set():
            raise EngineError(f"no whole answer in {left:.3g} s")
        if reply.status != 200:
            raise EngineError(f"HTTP {reply.status}: {_said(data)}")
        try:
            return json.loads(data)
        except ValueError:
            raise EngineError("what it answers is no JSON") from None


def _cut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _said(data: bytes) -> str:
    """The message of an error in the forms that engines have, or how its body begins."""
    try:
        found = json.loads(data)
        inner = found.get("error", found)
        text = inner["message"] if isinstance(inner, dict) else inner
    except (ValueError, KeyError, AttributeError, TypeError):
        text = data.decode(errors="replace")
    return " ".join(str(text).split())[:200] or "nothing more"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
