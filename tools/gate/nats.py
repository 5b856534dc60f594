"""The part of NATS' protocol that reads a server's version and answers requests, for red controls.

Plain text over TCP: INFO, CONNECT, SUB, MSG, PUB, PING. See docs.nats.io, "Client Protocol".
"""

import json
import socket
import threading
import urllib.parse
from typing import Any


def version(url: str) -> str:
    """The version that the server reports before the login; `?` if it does not answer."""
    place = urllib.parse.urlsplit(url.split(",")[0])
    try:
        with socket.create_connection((place.hostname or "127.0.0.1", place.port or 4222), 3) as line:
            info = line.makefile("rb").readline().decode()
        return json.loads(info.split(" ", 1)[1])["version"]
    except (OSError, ValueError, KeyError, IndexError):
        return "?"


class Responder:
    """Answers every request on a subject with the same text until it is closed."""

    def __init__(self, url: str, subject: str, answer: Any) -> None:
        place = urllib.parse.urlsplit(url.split(",")[0])
        self._line = socket.create_connection((place.hostname or "127.0.0.1", place.port or 4222), 5)
        self._line.settimeout(None)
        self._reader = self._line.makefile("rb")
        self.answered = 0
        self._answer = json.dumps(answer).encode()
        login = {"verbose": False, "pedantic": False, "name": "gate", "lang": "python", "version": "1"}
        if place.password:
            login.update(user=urllib.parse.unquote(place.username or ""), **{"pass": urllib.parse.unquote(place.password)})
        self._send(f"CONNECT {json.dumps(login)}\r\nSUB {subject} 1\r\nPING\r\n".encode())
        # The PONG confirms the subscription.
        for line in self._reader:
            if line.startswith(b"-ERR"):
                raise OSError(f"NATS refused: {line.decode(errors='replace').strip()}")
            if line.startswith(b"PONG"):
                break
        threading.Thread(target=self._serve, daemon=True).start()

    def _send(self, data: bytes) -> None:
        self._line.sendall(data)

    def _serve(self) -> None:
        try:
            for line in self._reader:
                if line.startswith(b"PING"):
                    self._send(b"PONG\r\n")
                elif line.startswith(b"MSG "):
                    words = line.split()
                    self._reader.read(int(words[-1]) + 2)
                    if len(words) == 5:
                        self._send(b"PUB %s %d\r\n%s\r\n" % (words[3], len(self._answer), self._answer))
                        self.answered += 1
        except (OSError, ValueError):
            pass  # closed

    def close(self) -> None:
        """Closes the connection."""
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._line.close()
