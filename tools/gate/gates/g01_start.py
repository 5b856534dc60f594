"""Gate 1, start: the parts of a stack may start in any order, and starting a running stack changes nothing.

After a power cut no compose file gives an order: the engine starts all containers in any order. This gate stops every
part, starts our services first in a random order, and the stores 20 s later in a random order. All must be ready
within 30 s of that and run jobs.
"""

import time
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

from .. import Context, Control, Gate, Replica
from ..jobs import ended, executed_once, submit, succeeded, unique
from ..model import CONTAINERS
from ..stacks.base import OUR_SERVICES

STORES = ("redis", "nats")
LATE_S = 20.0
READY_S = 30.0


def run(ctx: Context) -> None:
    planted = {"overrides": ctx.planted.get("overrides", []), "env": ctx.planted.get("env")}
    ctx.stack.up(**planted)
    ctx.note("ready after `up`, s", round(ctx.stack.wait_ready(READY_S), 1))
    second_up_changes_nothing(ctx, planted)
    stores_come_late(ctx)
    topic = unique("gate.start")
    ctx.worker(topic)
    jobs = submit(ctx, topic, 4)
    succeeded(ctx, "jobs after the late start", ended(ctx, jobs, 20))
    executed_once(ctx, "jobs after the late start", topic, jobs)


def _lives(ctx: Context) -> Dict[str, Tuple[str, str, int]]:
    """Container, its start and its restarts, by service."""
    found = {}
    for each in ctx.stack.inspected():
        name = each["Config"]["Labels"]["com.docker.compose.service"]
        found[name] = (each["Id"][:12], each["State"]["StartedAt"], each["RestartCount"])
    return found


def second_up_changes_nothing(ctx: Context, planted: Dict[str, Any]) -> None:
    before = _lives(ctx)
    ctx.stack.up(**planted)
    after = _lives(ctx)
    changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    ctx.expect(not changed, f"a second `up` made or restarted {', '.join(changed)}")
    ctx.count("containers that a second `up` left alone", len(after) - len(changed), len(before))


def stores_come_late(ctx: Context) -> None:
    parts: List[Replica] = [r for r in ctx.stack.replicas() if r.state == "running"]
    stores = [r for r in parts if r.service in STORES]
    others = [r for r in parts if r.service not in STORES]
    ctx.expect(stores, "there is no container of redis or nats to start late")
    ctx.random.shuffle(stores)
    ctx.random.shuffle(others)
    ctx.say("stopping everything")
    ctx.stack.stop_all(others)
    ctx.stack.stop_all(stores)
    ctx.note("order of the start", [r.name for r in others + stores])
    for replica in others:
        ctx.stack.start(replica)
    ctx.say(f"{len(others)} parts started; the stores follow in {LATE_S:.0f} s")
    stores_start = time.monotonic() + LATE_S
    while time.monotonic() < stores_start:
        time.sleep(0.5)
    early = sorted(r.name for r in ctx.stack.replicas() if r.service in OUR_SERVICES and r.state != "running")
    ctx.note("services that were not running while the stores were away", early)
    for replica in stores:
        ctx.stack.start(replica)
    took = ctx.stack.wait_ready(READY_S)
    ctx.note(f"all ready after the stores, s (limit {READY_S:.0f})", round(took, 1))


def planted_up(overrides: Optional[List[Any]] = None, env: Optional[Dict[str, Optional[str]]] = None,
               ) -> Callable[[Context], ContextManager[None]]:
    """The gate's own `up` has this fault; afterwards a plain `up` repairs it."""

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        ctx.planted.update(overrides=overrides or [], env=env)
        try:
            yield
        finally:
            ctx.stack.up()
            ctx.stack.wait_ready(60)

    return plant


WRONG = {"services": {"scheduler": {"environment": {"REDIS_URL": "redis://:not-the-password@redis:6379"}}}}

GATE = Gate(
    number=1,
    name="start",
    passes_when="any order, stores 20 s late: all ready 30 s after them; a second `up` changes nothing",
    run=run,
    controls=[
        # A scheduler that Redis refuses ends, again and again: no other gate finds two that run.
        Control("wrong Redis password", planted_up([WRONG]), r"scheduler-1: .*(password|WRONGPASS|auth)", CONTAINERS, also=(2, 7, 19, 20)),
        # Compose refuses before it touches the stack.
        Control("missing secret", planted_up(env={"REDIS_PASSWORD": None}), r"REDIS_PASSWORD.* is not set", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    limit_s=180.0,
)
