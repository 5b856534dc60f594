"""Gate 25, soak: under a steady load nothing grows that should not.

For ten minutes (MUSTER_GATE_SOAK_MINUTES says otherwise) jobs run, are cancelled, and clients watch events
and leave. Memory and descriptors of every replica, keys of Redis, entries of the audit log and consumers of
NATS are measured from outside and compared, after a warm-up, with the end. Job records, their lists and their
idempotency keys are kept on purpose: of these there may be as many as jobs were accepted within the time of
retention. The shortest retention of jobs is 20 minutes, so a run of ten shows retention at work by the audit
log, which is set to 1,000 entries here; a run of 60 shows it by the job records too.
"""

import http.client
import os
import threading
import time
import urllib.parse
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

from .. import Context, Control, Gate
from ..histories import check
from ..jobs import unique
from ..load import Load
from ..model import CONTAINERS
from ..samples import Sample, compare, sample

MINUTES = float(os.environ.get("MUSTER_GATE_SOAK_MINUTES", "10"))
# A planted growth shows sooner.
PLANTED_MINUTES = min(MINUTES, 3.0)
RATE, WORK_MS = 25.0, 20
CANCELS_PER_S = 12.0
SAMPLES = 40
AUDIT_ENTRIES = 1000
# What is deleted late: the ten minutes of a listing and the loop's own interval.
RETENTION_S, GRAIN_S = 20 * 60.0, 12 * 60.0
# Kept with each job on purpose: its record, its home while it lives, its key of idempotency.
PER_JOB = ("keys muster:job", "keys muster:idem")
GATEWAYS = ("gateway", "gateway-2")
SETTINGS = {"MUSTER_RETENTION_SUCCEEDED": "20m", "MUSTER_RETENTION_FAILED": "20m", "MUSTER_LOOP_RETENTION_INTERVAL": "10s",
            "MUSTER_AUDIT_MAX_ENTRIES": str(AUDIT_ENTRIES), "MUSTER_LOOP_AUDIT_RETENTION_INTERVAL": "5s"}


def run(ctx: Context) -> None:
    minutes = PLANTED_MINUTES if ctx.planted.get("growth") else MINUTES
    ctx.note("minutes", minutes)
    ctx.note("load average before", os.getloadavg()[0])
    _settings(ctx, {**SETTINGS, **ctx.planted.get("settings", {})})
    topics = [unique("gate.soak.http"), unique("gate.soak.nats")]
    ctx.worker(topics[0], threads=8)
    ctx.worker(topics[1], "nats", threads=16, builtin="drill")
    load = Load(ctx, topics, RATE, WORK_MS, lanes=6).start()
    waiting = Load(ctx, [unique("gate.soak.cancelled")], CANCELS_PER_S, 0, lanes=2).start()
    over = threading.Event()
    ctx.defer(over.set)
    for churn in (_cancels, _watchers, *ctx.planted.get("churn", [])):
        threading.Thread(target=churn, args=(ctx, waiting, over), daemon=True).start()
    samples = measure(ctx, minutes * 60, load)
    over.set()
    load.stop()
    waiting.stop()
    verdict(ctx, samples, len(load.accepted) + len(waiting.accepted), minutes * 60)
    ctx.note("answers to submits", load.summary(load.answers))
    check(ctx, "soak", load, 60)


def measure(ctx: Context, seconds: float, load: Load) -> List[Sample]:
    """Samples until the time is over."""
    every, ends = seconds / SAMPLES, time.monotonic() + seconds
    found: List[Sample] = []
    while time.monotonic() < ends:
        found.append(sample(ctx))
        if len(found) % 8 == 0:
            ctx.say(f"{len(load.accepted)} jobs; {ends - time.monotonic():.0f} s to go")
        time.sleep(max(0.0, min(every, ends - time.monotonic())))
    return found


def verdict(ctx: Context, samples: List[Sample], jobs: int, seconds: float) -> None:
    ctx.expect(len(samples) >= 10, f"only {len(samples)} samples were taken")
    kept = jobs * min(1.0, (RETENTION_S + GRAIN_S) / seconds)
    # Records of earlier gates on this stack were there before.
    first = samples[0].values
    bounded = {series: first.get(series, 0.0) + kept + 100 for series in PER_JOB}
    bounded["audit log entries"] = AUDIT_ENTRIES * 1.25 + CANCELS_PER_S * 12
    found = compare(samples, bounded)
    ctx.note("series", {each.series: f"{_round(each.early)} → {_round(each.late)}" for each in found})
    ctx.note("samples", len(samples))
    ctx.note("jobs", jobs)
    grew = [f"{each.series} grew from {_round(each.early)} to {_round(each.late)}" for each in found if each.grew]
    ctx.expect(not grew, "; ".join(grew))
    ctx.count("series that stayed flat", len(found) - len(grew), len(found))


def _round(value: float) -> float:
    return round(value / (1 << 20), 1) if value > 4 << 20 else round(value, 1)


def _settings(ctx: Context, values: Dict[str, str]) -> None:
    changed = {"services": {name: {"environment": values} for name in GATEWAYS}}
    ctx.defer(lambda: (ctx.stack.up(services=GATEWAYS), ctx.stack.wait_ready(60)))
    ctx.stack.up(overrides=[changed], services=GATEWAYS)
    ctx.stack.wait_ready(60)


def _cancels(ctx: Context, waiting: Load, over: threading.Event) -> None:
    """Cancels each job that no worker takes: every cancel is an entry of the audit log."""
    done = 0
    while not over.wait(0.2):
        for each in waiting.accepted[done:]:
            try:
                ctx.stack.api("POST", f"/jobs/{each.job}/cancel", {"reason": "soak"}, timeout=5)
            except OSError:
                continue
            done += 1


def _watchers(ctx: Context, _waiting: Load, over: threading.Event) -> None:
    """A client watches events for a second, again and again."""
    turn = 0
    while not over.wait(2):
        turn += 1
        line = _watch(ctx, turn)
        over.wait(1)
        if line:
            line.close()


def _watch(ctx: Context, turn: int) -> Any:
    place = urllib.parse.urlsplit(ctx.stack.gateways()[turn % len(ctx.stack.gateways())])
    line = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=5)
    try:
        line.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {ctx.stack.api_key}"})
        line.getresponse()
    except (OSError, http.client.HTTPException):
        return None
    return line


def _growth(**planted: Any) -> Any:
    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        ctx.planted.update(growth=True, **planted)
        yield
        ctx.planted.clear()

    return plant


def _never_leave(ctx: Context, _waiting: Load, over: threading.Event) -> None:
    """Clients that watch events and never leave: each keeps a descriptor of its gateway."""
    lines = []
    while not over.wait(1):
        lines.append(_watch(ctx, len(lines)))
    for line in lines:
        if line:
            line.close()


GATE = Gate(
    number=25,
    name="soak",
    passes_when=f"{MINUTES:.0f} minutes of load: memory, descriptors, keys, audit log and consumers stay flat",
    run=run,
    controls=[
        Control("retention off", _growth(settings={"MUSTER_AUDIT_MAX_ENTRIES": "100000000"}), r"audit log entries grew from", CONTAINERS,
                inside=True),
        Control("clients that never leave", _growth(churn=[_never_leave]), r"descriptors of gateway-\d grew from", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    limit_s=MINUTES * 60 + 240.0,
)
