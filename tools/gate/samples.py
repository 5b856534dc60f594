"""Repeated measurements of a stack from outside: memory, descriptors, keys, consumers."""

import json
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

from .context import Context
from .stacks.base import OUR_SERVICES

# How much a series may grow, at any size, before it counts as growth.
FLOORS = {"RSS": 12 << 20, "descriptors": 12, "keys": 40, "consumers": 3, "audit log": 200}
GROWTH = 0.10


class Sample(NamedTuple):
    """One round of measurements, by series."""

    at: float
    values: Dict[str, float]


def sample(ctx: Context) -> Sample:
    """Measures everything once."""
    found: Dict[str, float] = {}
    for replica in ctx.stack.replicas():
        if replica.service in OUR_SERVICES and replica.state == "running":
            found[f"RSS of {replica.name}"] = _rss(replica.pid)
        if replica.service in (*OUR_SERVICES, "redis", "nats") and replica.state == "running":
            found[f"descriptors of {replica.name}"] = len(os.listdir(f"/proc/{replica.pid}/fd"))
    for kind, count in keys(ctx).items():
        found[f"keys {kind}"] = count
    found["audit log entries"] = float(ctx.stack.redis("XLEN", "muster:audit") or 0)
    consumers, messages = _jetstream(ctx)
    found["consumers of NATS"] = consumers
    found["messages in NATS"] = messages
    return Sample(time.monotonic(), found)


def keys(ctx: Context) -> Dict[str, int]:
    """The number of keys in Redis by kind; a kind is the first two parts of the key."""
    found: Counter = Counter()
    cursor = "0"
    while True:
        cursor, *names = ctx.stack.redis("SCAN", cursor, "COUNT", "2000").split("\n")
        found.update(":".join(name.split(":")[:2]) for name in names if name)
        if cursor == "0":
            return dict(found)


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return float(line.split()[1]) * 1024
    return 0.0


def _jetstream(ctx: Context) -> Tuple[float, float]:
    node = next(each for each in ctx.stack.replicas("nats") if each.state == "running")
    code, said = ctx.stack.inside(node, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/jsz")
    ctx.expect(code == 0, f"NATS does not report its content: {said[:200]}")
    found = json.loads(said)
    return float(found["consumers"]), float(found["messages"])


class Growth(NamedTuple):
    """The growth of a series, from after the warm-up to the end."""

    series: str
    early: float
    late: float
    grew: bool


def compare(samples: List[Sample], bounded: Dict[str, float]) -> List[Growth]:
    """Compares the median of each series after the warm-up with the median at the end.

    `bounded` series may grow up to the given value. Series without a promise are skipped.
    """
    first, last = samples[0].at, samples[-1].at
    part = [(each.at - first) / max(last - first, 1) for each in samples]
    early = [each for each, at in zip(samples, part) if 0.25 <= at <= 0.5]
    late = [each for each, at in zip(samples, part) if at >= 0.8]
    found = []
    for series in sorted({name for each in samples for name in each.values}):
        floor = next((size for word, size in FLOORS.items() if series.startswith(word)), None)
        if floor is None and series not in bounded:
            continue
        then, now = (statistics.median(each.values.get(series, 0.0) for each in span) for span in (early, late))
        if series in bounded:
            found.append(Growth(series, then, now, now > bounded[series]))
        else:
            found.append(Growth(series, then, now, now - then > max(then * GROWTH, floor or 0)))
    return found
