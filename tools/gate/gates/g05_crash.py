"""Gate 5, crash: any process may die at any moment, and every accepted job still ends exactly once.

One of each class - gateway, scheduler, workflow service, worker, Redis, NATS - is killed by its host pid in the middle of
200 jobs. Each must be back as a new serving process within 10 s, and the history of every job must agree with
the workers' own log. Half of the jobs run on HTTP workers beside the stack, half on the
stack's own worker containers. Only a job whose worker was killed may be tried again.
"""

import os
from typing import Dict, List, Set

from .. import Context, Control, Gate, Replica
from ..histories import check
from ..jobs import unique
from ..load import Load
from ..model import CONTAINERS, Red
from ..plants import override, worker_mode
from ..restarts import back, crash
from ..served import serve_from_containers

# The worker's jobs come back when their leases end. No scheduler does that in the first 30 s of its life,
# so the worker dies before a scheduler does.
CLASSES = ("gateway", "worker", "scheduler", "workflow", "redis", "nats")
JOBS = 200
RATE = 40.0
WORK_MS = 300
RESTART_S = 10.0
LEASE_MS = 10_000
END_S = 90.0


def run(ctx: Context) -> None:
    topics = {"http": unique("gate.crash.http"), "nats": unique("gate.crash.nats")}
    http = [ctx.worker(topics["http"], threads=8, lease_ms=LEASE_MS) for _ in range(2)]
    serve_from_containers(ctx, topics["nats"], LEASE_MS)
    took: Dict[str, float] = {}
    dead: Set[str] = set()
    ctx.note("load average before", os.getloadavg()[0])
    for kind in CLASSES:
        victim = _victim(ctx, kind)
        ctx.say(f"kill -9 of {victim.name} (pid {victim.pid}) in the middle of {JOBS} jobs")
        load = Load(ctx, list(topics.values()), RATE, WORK_MS, limit=JOBS).start()
        load.reach(JOBS // 3, 60)
        since = crash(ctx, victim)
        if kind == "worker":
            dead.add(victim.name)
            if http[0]:
                dead.add(http[0].name)
                http[0].kill9()
                http[0] = ctx.worker(topics["http"], threads=8, lease_ms=LEASE_MS)
        took[victim.name] = round(_back(ctx, victim, since), 2)
        ctx.say(f"{victim.name} is back after {took[victim.name]:.1f} s")
        load.finish(60)
        ctx.note(f"{victim.name} killed: answers to submits", load.summary(load.answers))
        check(ctx, f"{victim.name} killed", load, END_S, dead)
        ctx.stack.wait_ready(30)
    ctx.count("classes whose killed process was back in time", len(took), len(CLASSES))
    ctx.note(f"seconds until it served again (limit {RESTART_S:.0f})", took)


def _back(ctx: Context, victim: Replica, since: float) -> float:
    """Returns the seconds until it serves again. If it does not come back, it is started when the gate ends, so that a gate
    that runs under the fault meets the fault and not the dead process."""
    try:
        return back(ctx, victim, since, RESTART_S)
    except Red:
        ctx.defer(lambda: (ctx.stack.start(victim), ctx.stack.wait_ready(60)))
        raise


def _victim(ctx: Context, kind: str) -> Replica:
    running: List[Replica] = [each for each in ctx.stack.replicas(kind) if each.state == "running"]
    ctx.expect(running, f"no {kind} runs")
    return ctx.random.choice(running)


GATE = Gate(
    number=5,
    name="crash",
    passes_when="one of each class is killed by host pid under 200 jobs: histories hold, restarted within 10 s",
    run=run,
    controls=[
        Control('restart: "no"', override({name: {"restart": "no"} for name in ("gateway", "gateway-2")}, ready=True),
                # Gate 19 kills the gateway that leads `retention`, and waits for it.
                r"gateway-\d was not restarted within 10 s .*exited", CONTAINERS, also=(19,)),
        # Gates 19 and 20 count executions as soon as jobs have ended.
        Control("a worker that acks before it works", worker_mode("acks-first"), r"never executed by the worker's log", CONTAINERS,
                also=(19, 20)),
    ],
    needs=CONTAINERS,
    limit_s=560.0,
)
