"""Checks that a crashed part of the stack is back: there is a new process, and it serves."""

import socket
import time
import urllib.parse
from typing import Any

from .context import Context
from .model import Red
from .stacks.base import OUR_SERVICES, Replica


def crash(ctx: Context, replica: Replica) -> float:
    """Kills its process with `kill -9` on this host; returns the time."""
    ctx.expect(replica.state == "running" and replica.pid > 0, f"{replica.name} is {replica.state} before it is killed")
    at = time.monotonic()
    ctx.stack.kill9(replica)
    return at


def back(ctx: Context, before: Replica, since: float, limit: float) -> float:
    """Waits until a new process serves; returns the seconds since the crash."""
    last = "no new process"
    while True:
        took = time.monotonic() - since
        try:
            now = ctx.stack.replica(before.name)
            if now.state == "running" and now.pid not in (0, before.pid):
                last = "it runs and does not serve"
                if serves(ctx, now):
                    return time.monotonic() - since
            else:
                last = f"its container is {now.state}"
        except (OSError, Red) as missing:
            last = str(missing)
        if took > limit:
            raise Red(f"{before.name} was not restarted within {limit:.0f} s of its kill -9: {last}")
        time.sleep(0.1)


def serves(ctx: Context, replica: Replica) -> bool:
    """Whether the replica answers in its own protocol."""
    if replica.service in OUR_SERVICES:
        return not ctx.stack.unready([replica])
    if replica.service == "redis":
        return ctx.stack.redis("PING") == "PONG"
    if replica.service == "nats":
        return nats_answers(ctx.stack.nats_url)
    return True


def nats_answers(url: str) -> bool:
    """Whether a NATS server sends its INFO line."""
    place: Any = urllib.parse.urlsplit(url)
    with socket.create_connection((place.hostname, place.port), 2) as line:
        line.settimeout(2)
        return line.recv(4) == b"INFO"
