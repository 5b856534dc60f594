"""Fills the storage of NATS with its own stream until the server refuses more, and frees it again.

The limit of an account counts the content of its streams. Muster's stream of events alone reserves a gibibyte, so
this module fills the rest: with messages of half a mebibyte that no program reads.
"""

import json
import socket
import urllib.parse
from contextlib import contextmanager
from typing import Any, Dict, Iterator

from .model import Red

STREAM, SUBJECT = "GATE_FILL", "gate.fill"
PIECE = 512 * 1024
MOST = 4096
CONFIG = {"name": STREAM, "subjects": [SUBJECT], "retention": "limits", "storage": "file", "max_consumers": -1,
          "max_msgs": -1, "max_bytes": -1, "max_age": 0, "num_replicas": 1, "discard": "new"}


class Filler:
    """One connection for each call: a server drops a client that is silent for some seconds. Each request waits for its
    answer."""

    def __init__(self, url: str) -> None:
        self._place: Any = urllib.parse.urlsplit(url.split(",")[0])
        self._made = False

    def fill(self) -> int:
        """Publishes until the server refuses; returns the number of accepted bytes."""
        with self._connected() as line:
            if not self._made:
                made = line.ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(CONFIG).encode())
                if "error" in made:
                    raise Red(f"NATS does not make a stream to fill: {made['error']}")
                self._made = True
            # Halve the size down to a few bytes, so that not even a small message fits.
            size, taken = PIECE, 0
            for _ in range(MOST):
                answer = line.ask(SUBJECT, b"x" * size)
                if "error" not in answer:
                    taken += size
                elif size <= 64:
                    return taken
                else:
                    size //= 2
        raise Red(f"NATS took {taken} bytes and is not full")

    def make_room(self, pieces: int) -> None:
        """Removes so many of the oldest messages; the next `fill` is quick."""
        with self._connected() as line:
            held = line.ask(f"$JS.API.STREAM.INFO.{STREAM}", b"")["state"]["messages"]
            answer = line.ask(f"$JS.API.STREAM.PURGE.{STREAM}", json.dumps({"keep": max(held - pieces, 1)}).encode())
        if not answer.get("success"):
            raise Red(f"NATS does not make room in {STREAM}: {answer}")

    def empty(self) -> None:
        """Removes the stream."""
        if self._made:
            with self._connected() as line:
                line.ask(f"$JS.API.STREAM.DELETE.{STREAM}", b"")
            self._made = False

    @contextmanager
    def _connected(self) -> "Iterator[Line]":
        line = Line(self._place)
        try:
            yield line
        finally:
            line.close()


class Line:
    """A connection."""

    def __init__(self, place: Any) -> None:
        self._line = socket.create_connection((place.hostname, place.port or 4222), 5)
        self._line.settimeout(20)
        self._reader = self._line.makefile("rb")
        login: Dict[str, Any] = {"verbose": False, "pedantic": False, "name": "gate", "lang": "python", "version": "1"}
        if place.password:
            login.update(user=urllib.parse.unquote(place.username or ""), **{"pass": urllib.parse.unquote(place.password)})
        self._line.sendall(f"CONNECT {json.dumps(login)}\r\nSUB _INBOX.gate 1\r\nPING\r\n".encode())

    def ask(self, subject: str, body: bytes) -> Dict[str, Any]:
        """Sends a request and returns its answer."""
        self._line.sendall(b"PUB %s _INBOX.gate %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        while True:
            line = self._reader.readline()
            if not line:
                raise OSError("NATS closed the connection")
            if line.startswith(b"PING"):
                self._line.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise OSError(f"NATS refused: {line.decode(errors='replace').strip()}")
            elif line.startswith(b"MSG "):
                answer: Dict[str, Any] = json.loads(self._reader.read(int(line.split()[-1]) + 2)[:-2])
                return answer

    def close(self) -> None:
        """Closes the connection."""
        self._line.close()
