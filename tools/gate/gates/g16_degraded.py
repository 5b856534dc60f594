"""Gate 16, degraded: a hanging store or a disconnected scheduler only delays jobs.

Redis is paused for 20 s, NATS for 20 s, the leading scheduler is cut off from its network for 40 s, and the
containers of Redis and NATS are stopped and started, each under load and with jobs in the hands of workers
whose leases are shorter than the pauses. Refusals must be 503 with Retry-After; no job may be tried again,
since every worker lives; no job may be lost or end twice.
"""

import os
import time
from functools import partial
from typing import Any, Callable, List

from .. import Context, Control, Gate, Replica
from ..histories import check
from ..jobs import unique
from ..leaders import leader, locks
from ..load import Answer, Load
from ..model import CONTAINERS
from ..plants import override
from ..restarts import back, crash

PAUSE_S, CUT_S, DOWN_S = 20.0, 40.0, 3.0
LEASE_MS = 10_000
# Longer than a lease and than the pause: workers hold these jobs during the whole outage.
LONG_MS = 26_000
LONG_JOBS = 6
RATE, WORK_MS = 15.0, 100
END_S = 120.0
# Documented: a refusal takes two seconds. The rest is for a busy machine.
ANSWER_S = 4.0


def run(ctx: Context) -> None:
    ctx.note("load average before", os.getloadavg()[0])
    redis, nats = (_the(ctx, name) for name in ("redis", "nats"))
    if ctx.planted.get("redis dies"):
        outage(ctx, "Redis killed", lambda: _killed(ctx, redis), PAUSE_S)
        return
    refused = outage(ctx, "Redis paused", lambda: _frozen(ctx, redis), PAUSE_S)
    ctx.expect(any(answer.status == 503 for answer in refused), "Redis paused: no submit was refused, so the pause proves nothing")
    told = outage(ctx, "NATS paused", lambda: _frozen(ctx, nats), PAUSE_S)
    ctx.expect(any(answer.deferred or answer.status == 503 for answer in told),
               "NATS paused: every submit was answered as ever, so the pause proves nothing")
    outage(ctx, "scheduler cut off", lambda: _cut_off(ctx), CUT_S)
    for name, replica in (("Redis", redis), ("NATS", nats)):
        outage(ctx, f"{name} restarted", partial(_down, ctx, replica), DOWN_S)


def outage(ctx: Context, what: str, begin: Callable[[], Callable[[], Any]], seconds: float) -> List[Answer]:
    """Runs one outage under load and checks every job afterwards; returns the answers during the outage."""
    topics = [unique("gate.degraded.http"), unique("gate.degraded.nats")]
    ctx.worker(topics[0], threads=12, lease_ms=LEASE_MS)
    ctx.worker(topics[1], "nats", threads=24, lease_ms=LEASE_MS, builtin="drill")
    held = Load(ctx, topics, 20.0, LONG_MS, limit=LONG_JOBS).start()
    held.finish(30)
    running = [each.job for each in held.accepted]
    ctx.poll(f"{what}: the workers run {LONG_JOBS} long jobs", 30.0,
             lambda: {run.job for topic in topics for run in ctx.executions(topic)} >= set(running))
    load = Load(ctx, topics, RATE, WORK_MS, lanes=8).start()
    load.reach(30, 30)
    ctx.say(f"{what} for {seconds:.0f} s, with {LONG_JOBS} jobs in the hands of workers")
    since = time.monotonic()
    mend = begin()
    try:
        while time.monotonic() < since + seconds:
            time.sleep(0.2)
    finally:
        mend()
    until = time.monotonic()
    ready = ctx.stack.wait_ready(60)
    accepted = len(load.accepted)
    load.reach(accepted + 30, 60)
    load.stop()
    ctx.note(f"{what}: all ready after its end, s", round(ready, 1))
    during = load.since(since, until)
    refusals_are_clear(ctx, what, during)
    check(ctx, f"{what}, long jobs", held, END_S)
    check(ctx, f"{what}, load", load, END_S)
    return during


def refusals_are_clear(ctx: Context, what: str, answers: List[Answer]) -> None:
    """Red unless the answer is 2xx, or 503 with Retry-After, and soon."""
    ctx.expect(answers, f"{what}: no request was answered meanwhile")
    ctx.note(f"{what}: answers meanwhile", Load.summary(answers))
    slow = max(answers, key=lambda answer: answer.seconds)
    ctx.note(f"{what}: slowest answer, s", round(slow.seconds, 2))
    wrong = [a for a in answers if a.status not in (200, 202, 503)]
    ctx.expect(not wrong, f"{what}: submits got something else than 202 or 503: {Load.summary(wrong)}")
    silent = [a for a in answers if a.status == 503 and not a.retry_after]
    ctx.expect(not silent, f"{what}: {len(silent)} answers 503 came without Retry-After")
    ctx.expect(slow.seconds <= ANSWER_S, f"{what}: an answer took {slow.seconds:.1f} s")


def _the(ctx: Context, service: str) -> Replica:
    found = [each for each in ctx.stack.replicas(service) if each.state == "running"]
    ctx.expect(found, f"no {service} runs")
    return found[0]


def _frozen(ctx: Context, replica: Replica) -> Callable[[], Any]:
    ctx.stack.pause(replica)
    ctx.defer(lambda: ctx.stack.unpause(replica))
    return lambda: ctx.stack.unpause(replica)


def _down(ctx: Context, replica: Replica) -> Callable[[], Any]:
    """Stops it in order until the outage ends."""
    ctx.stack.stop(replica)
    ctx.defer(lambda: ctx.stack.start(replica))
    return lambda: ctx.stack.start(replica)


def _killed(ctx: Context, replica: Replica) -> Callable[[], Any]:
    since = crash(ctx, replica)
    back(ctx, replica, since, 10.0)
    return lambda: None


def _cut_off(ctx: Context) -> Callable[[], Any]:
    """The scheduler that leads the reconciler loses its network."""
    held = leader(ctx, locks(ctx)["reconciler"])
    ctx.expect(held, "no scheduler leads the reconciler")
    victim = ctx.stack.replica(held.instance if held else "")
    ctx.say(f"{victim.name} leads the reconciler and is cut off")
    ctx.note("scheduler cut off", victim.name)
    ctx.stack.disconnect(victim)
    ctx.defer(lambda: ctx.stack.connect(victim))
    return lambda: ctx.stack.connect(victim)


def _forgetful() -> Any:
    """Redis has no append-only file, and is killed instead of paused."""
    command = ["sh", "/etc/muster/start.sh", "--appendonly", "no"]
    planted = override({"redis": {"command": command}}, ready=True)

    def plant(ctx: Context) -> Any:
        ctx.planted["redis dies"] = True
        return planted(ctx)

    return plant


GATE = Gate(
    number=16,
    name="degraded",
    passes_when="Redis or NATS paused 20 s, a scheduler cut off 40 s: 503 with Retry-After, no lease ended in vain, nothing lost",
    run=run,
    controls=[
        Control("Redis without AOF, killed", _forgetful(),
                r"does not know job \S+, which was accepted|^Redis killed, (long jobs|load): \d+ of \d+ histories do not hold", CONTAINERS,
                # Doctor finds that Redis keeps no log, and Redis does not tell the size of one.
                also=(2, 20)),
    ],
    needs=CONTAINERS,
    limit_s=900.0,
)
