"""The part of Redis' protocol that sends a command to a server on this host.

Each command has its own connection: gates send few commands, and a connection would break when a server restarts.
"""

import socket
import urllib.parse
from typing import Any, List


class Redis:
    """`Redis.ask(url, "GET", key)`."""

    @staticmethod
    def ask(url: str, *command: str, timeout: float = 3.0) -> str:
        """The answer as text. OSError when the server is away or refuses."""
        answer = Redis.call(url, *command, timeout=timeout)
        return _text(answer)

    @staticmethod
    def call(url: str, *command: str, timeout: float = 3.0) -> Any:
        """The answer as Redis typed it: str, int, None or a list of these."""
        place = urllib.parse.urlsplit(url.split(",")[0])
        host, port = place.hostname or "127.0.0.1", place.port or 6379
        try:
            with socket.create_connection((host, port), timeout) as line, line.makefile("rb") as answers:
                if place.password:
                    user = [urllib.parse.unquote(place.username)] if place.username else []
                    line.sendall(_encode(["AUTH", *user, urllib.parse.unquote(place.password)]))
                    _decode(answers)
                line.sendall(_encode(list(command)))
                return _decode(answers)
        except OSError as away:
            raise OSError(f"redis at {host}:{port}: {away}") from away


def _encode(words: List[str]) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def _decode(answers: Any) -> Any:
    line = answers.readline()
    if not line.endswith(b"\r\n"):
        raise OSError("the connection was cut off")
    kind, rest = line[:1], line[1:-2].decode(errors="replace")
    if kind == b"+":
        return rest
    if kind == b"-":
        raise OSError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else answers.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [_decode(answers) for _ in range(int(rest))]
    raise OSError(f"no answer of Redis: {line[:80]!r}")


def _text(answer: Any) -> str:
    if answer is None:
        return ""
    if isinstance(answer, list):
        return "\n".join(_text(item) for item in answer)
    return str(answer)
