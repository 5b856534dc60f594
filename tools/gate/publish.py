"""Publishes on NATS, reads and purges a stream. Has only the parts of the protocol that this needs."""

import base64
import json
import socket
import urllib.parse
from typing import Any, BinaryIO, List, Tuple


def publish(url: str, subject: str, bodies: List[bytes]) -> None:
    """Publishes each body; returns when the server has accepted all of them."""
    line, reader = _connect(url)
    with line:
        for body in bodies:
            line.sendall(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        line.sendall(b"PING\r\n")
        _until(line, reader, b"PONG")


def purge(url: str, stream: str) -> None:
    """Removes every message of a stream."""
    answer = request(url, f"$JS.API.STREAM.PURGE.{stream}", b"")
    if not answer.get("success"):
        raise OSError(f"NATS did not purge {stream}: {answer}")


def last(url: str, stream: str, subject: str) -> bytes:
    """The newest message of a stream on this subject."""
    answer = request(url, f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode())
    if "message" not in answer:
        raise OSError(f"{stream} has no message on {subject}: {answer}")
    return base64.b64decode(answer["message"]["data"])


def request(url: str, subject: str, body: bytes) -> Any:
    """Sends a request and returns its answer as JSON."""
    line, reader = _connect(url)
    with line:
        line.sendall(b"SUB _GATE.answer 1\r\nPUB %s _GATE.answer %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        size = int(_until(line, reader, b"MSG").split()[-1])
        return json.loads(reader.read(size))


def _connect(url: str) -> Tuple[socket.socket, BinaryIO]:
    place = urllib.parse.urlsplit(url.split(",")[0])
    line = socket.create_connection((place.hostname or "127.0.0.1", place.port or 4222), 10)
    login = {"verbose": False, "pedantic": False, "name": "gate", "lang": "python", "version": "1"}
    if place.password:
        login.update(user=urllib.parse.unquote(place.username or ""), **{"pass": urllib.parse.unquote(place.password)})
    reader = line.makefile("rb")
    line.sendall(f"CONNECT {json.dumps(login)}\r\nPING\r\n".encode())
    _until(line, reader, b"PONG")
    return line, reader


def _until(line: socket.socket, reader: BinaryIO, word: bytes) -> bytes:
    """Reads until a line begins with the word, and answers pings."""
    while True:
        text = reader.readline()
        if text.startswith(word):
            return text
        if text.startswith(b"PING"):
            line.sendall(b"PONG\r\n")
        if not text or text.startswith(b"-ERR"):
            raise OSError(f"NATS refused: {text.decode(errors='replace').strip() or 'it closed the connection'}")
