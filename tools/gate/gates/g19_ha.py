"""Gate 19, high availability: two replicas of each service behave as one, and the loss of one loses nothing.

Shown by the workers' own logs, by Redis and by both gateways: every job runs once; one rate limit holds
over both gateways; both show the same; a scheduler that stops or crashes under load loses no job and
runs none twice; and each loop's leader, killed, has a successor within the 15 s of its lock, measured
with a slack of 1.5 s. A loop with shards has a leader for each of them: one of its replicas is killed, and all
shards that it led have successors in time.
"""

import time
from contextlib import contextmanager
from functools import partial
from typing import Dict, Iterator, List, Optional

from .. import Context, Control, Gate, Replica
from ..burst import one_limit
from ..jobs import ended, executed_once, submit, succeeded, unique
from ..leaders import LIMIT_S, TTL_S, TakeOver, doomed, hand_over, leaders, locks
from ..model import CONTAINERS
from ..nats import Responder
from ..plants import override, stopped, worker_mode
from ..stacks.base import OUR_SERVICES, request

SERVICES = OUR_SERVICES
JOBS = 40
# How long a job of the load takes: long enough that a crash meets some of them.
WORK_MS = 150


def run(ctx: Context) -> None:
    both_are_up(ctx)
    gateways_share_one_truth(ctx)
    one_limit(ctx)
    topics = {"http": unique("gate.ha.http"), "nats": unique("gate.ha.nats")}
    names = [w.name for kind, topic in topics.items() for w in [ctx.worker(topic, kind, threads=8)] if w]
    both_show_the_same_workers(ctx, topics, names)
    ids: Dict[str, List[str]] = {kind: [] for kind in topics}
    for kind, topic in topics.items():
        jobs = submit(ctx, topic, JOBS)
        succeeded(ctx, f"{JOBS} jobs over both gateways, {kind} worker", ended(ctx, jobs, 20))
        executed_once(ctx, f"{JOBS} jobs over both gateways, {kind} worker", topic, jobs)
        ids[kind] += jobs
    names_of_locks = locks(ctx)
    first, second = (ctx.stack.replica(name) for name in ("scheduler-1", "scheduler-2"))
    ids["http"] += loses_scheduler(ctx, topics["http"], second, "stop")
    # Now the other one leads. Move the leaders back, so that the crash below hits every leader.
    hand_over(ctx, names_of_locks, ctx.stack.replica(first.name), second.name)
    ctx.stack.wait_ready(20)
    ids["http"] += loses_scheduler(ctx, topics["http"], ctx.stack.replica(second.name), "kill -9", names_of_locks)
    for kind, topic in topics.items():
        executed_once(ctx, f"all jobs at the end, {kind} worker", topic, ids[kind])
    both_show_the_same_workers(ctx, topics, names)


def both_are_up(ctx: Context) -> None:
    """Two replicas of each service, ready, and each gateway answers on its public port under its own name."""
    for service in SERVICES:
        found = ctx.stack.replicas(service)
        up = [replica for replica in found if replica.state == "running"]
        told = ", ".join(f"{replica.name} {replica.state}" for replica in found) or "none"
        ctx.note(f"replicas of {service}", told)
        ctx.expect(len(up) >= 2, f"{len(up)} replica of {service} runs, 2 are needed: {told}")
    ctx.poll("every replica is ready", 15.0, lambda: _all_ready(ctx))
    for replica in ctx.stack.replicas("gateway"):
        ctx.poll(f"{replica.name} answers on its API port", 5.0, partial(_answers, ctx, replica))


def _all_ready(ctx: Context) -> bool:
    unready = ctx.stack.unready()
    ctx.expect(not unready, "; ".join(f"{name}: {why}" for name, why in sorted(unready.items())))
    return True


def _answers(ctx: Context, replica: Replica) -> bool:
    answer = request("GET", f"{replica.http}/api/v1/status", timeout=3)
    ctx.expect(answer.status == 200, f"{replica.name}: GET /status answered {answer.status}")
    ctx.expect(answer.json["instance"] == replica.name, f"the port of {replica.name} is served by {answer.json['instance']}")
    return True


def gateways_share_one_truth(ctx: Context) -> None:
    """Every gateway lists the same replicas, and all that run: they read one Redis."""
    wanted = sorted(replica.name for service in SERVICES for replica in ctx.stack.replicas(service))

    def same() -> bool:
        for n, _ in enumerate(ctx.stack.gateways()):
            answer = ctx.stack.api("GET", "/replicas", gateway=n, timeout=5)
            ctx.expect(answer.status == 200, f"gateway-{n + 1}: GET /replicas: {answer.status} {answer.text[:200]}")
            shown = sorted(row["instance"] for row in answer.json["items"])
            ctx.expect(shown == wanted, f"gateway-{n + 1} knows {shown}: it does not share one Redis with the others")
        return True

    ctx.poll(f"every gateway knows {wanted}", 12.0, same)
    ctx.note("replicas that every gateway knows", wanted)


def both_show_the_same_workers(ctx: Context, topics: Dict[str, str], names: List[str]) -> None:
    """Both gateways list the same sorted workers, those of this gate among them."""
    wanted = len(topics)

    def shown(n: int) -> List[str]:
        answer = ctx.stack.api("GET", "/workers", gateway=n, timeout=5)
        ctx.expect(answer.status == 200, f"gateway-{n + 1}: GET /workers: {answer.status} {answer.text[:200]}")
        return [row["id"] for row in answer.json["items"]]

    def same() -> List[str]:
        lists = [shown(n) for n, _ in enumerate(ctx.stack.gateways())]
        ours = [name for name in lists[0] if name in names]
        ctx.expect(len(ours) == wanted, f"no worker: gateway-1 shows {len(ours)} of the {wanted} workers of this gate")
        ctx.expect(all(each == lists[0] for each in lists), f"the gateways show different workers: {lists}")
        ctx.expect(lists[0] == sorted(lists[0]), f"the workers are not in the order of their names: {lists[0]}")
        return lists[0]

    ctx.note("workers that both gateways show, sorted", ctx.poll("the same workers on all gateways", 12.0, same))


def loses_scheduler(ctx: Context, topic: str, victim: Replica, how: str, watched: Optional[Dict[str, str]] = None) -> List[str]:
    """A scheduler goes away under load. The other one ends all jobs meanwhile; when it is back, no job runs again."""
    ctx.say(f"{how} of {victim.name} under load")
    watched = watched or {}
    before = submit(ctx, topic, JOBS // 2, {"work_ms": WORK_MS})
    held = {loop: leader for loop, leader in leaders(ctx, watched).items() if leader}
    ctx.expect(not watched or len(held) == len(watched), f"loops without a leader before the crash: {set(watched) - set(held)}")
    dead = doomed(held, victim.name)
    lost = {loop: leader for loop, leader in held.items() if leader.instance in dead}
    also = [ctx.stack.replica(name) for name in sorted(dead - {victim.name})]
    ctx.defer(partial(all_up_again, ctx, [victim, *also]))
    if how == "stop":
        ctx.stack.stop(victim)
    else:
        ctx.stack.hold(victim)
        # The watch begins first: what it measures is never too short.
        watch = TakeOver(ctx, watched, lost)
        for replica in [victim, *also]:
            ctx.stack.kill9(replica)
        watch.start()
    during = submit(ctx, topic, JOBS // 2, {"work_ms": WORK_MS})
    jobs = ended(ctx, before + during, 30)
    succeeded(ctx, f"{how} of {victim.name}: jobs before and during", jobs)
    if ctx.stack.containers:
        state = ctx.stack.replica(victim.name).state
        ctx.expect(state == "exited", f"{victim.name} is {state}: it was to be down until all jobs had ended")
        ctx.note(f"{how} of {victim.name}: ended on the survivor while it was {state}", len(during))
    if how != "stop":
        took = watch.seconds()
        ctx.count(f"loops and shards whose killed leader was replaced within {LIMIT_S:g} s", len(took), len(lost))
        ctx.note("take-over, seconds after the kill", took)
        ctx.note(f"of these later than the {TTL_S:g} s of the lock", {loop: late for loop, late in took.items() if late > TTL_S})
        ctx.note("take-over, seconds after the dead leader's lock had run out", watch.after_the_lock())
    ctx.stack.start(victim)
    ready = ctx.stack.wait_ready(30)
    ctx.note(f"{how} of {victim.name}: all ready after its restart, s", round(ready, 1))
    # What a restarted scheduler would do again it does at once: it reads its consumers and the looks.
    watch_quiet(ctx, topic, 2.0)
    executed_once(ctx, f"{how} of {victim.name}, after its restart", topic, before + during)
    return before + during


def all_up_again(ctx: Context, gone: List[Replica]) -> None:
    """Starts the processes that this gate has stopped and that are still down, because the gate turned red or no restart
    policy acts. So the next gates find the stack unchanged."""
    down = [replica for replica in gone if ctx.stack.replica(replica.name).state != "running"]
    for replica in down:
        ctx.stack.start(replica)
    if down:
        ctx.stack.wait_ready(60)


def watch_quiet(ctx: Context, topic: str, seconds: float) -> None:
    """Red when a worker executes anything of the topic in the next seconds."""
    count, ends = len(ctx.executions(topic)), time.monotonic() + seconds
    while time.monotonic() < ends:
        now = len(ctx.executions(topic))
        ctx.expect(now == count, f"{now - count} executions although every job had ended")
        time.sleep(0.2)


@contextmanager
def denies_everything(ctx: Context) -> Iterator[None]:
    """The schedulers ask a decider about every job, and it denies each one."""
    decider = Responder(ctx.stack.nats_url, "sys.job.decide", {"decision": "deny", "reason": "planted by the gate"})
    asks = {"environment": {"MUSTER_DECIDE_TOPICS": "*"}}
    try:
        with override({"scheduler": asks, "scheduler-2": asks}, ready=True)(ctx):
            yield
    finally:
        decider.close()


BROKEN = {"gateway-2": {"environment": {"MUSTER_HTTP_ADDR": "127.0.0.1:8081"}}}
OWN_LIMITER = {name: {"environment": {"REDIS_RATE_LIMIT": "false"}} for name in ("gateway", "gateway-2")}
OTHER_REDIS = {"gateway-2": {"environment": {"REDIS_URL": "redis://redis-other:6379"}}}
REDIS_OTHER = {
    "redis-other": {
        "image": "${REDIS_IMAGE:-redis:7.2-alpine}",
        "command": ["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", "/tmp"],
        # Hardened like the others, so that gate 7 stays green.
        "user": "999:1000", "read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"],
        "mem_limit": "64m", "restart": "unless-stopped", "tmpfs": ["/tmp", "/data"],
    }
}

GATE = Gate(
    number=19,
    name="HA",
    passes_when="two of each behave as one; stopping or killing one loses nothing and runs nothing twice",
    run=run,
    controls=[
        Control("no worker", worker_mode("absent"), r"no worker: gateway-1 shows 0 of the 2 workers", also=(20,)),
        Control("one replica", stopped(["gateway-2", "scheduler-2", "workflow-2"]), r"1 replica of \w+ runs, 2 are needed", CONTAINERS,
                also=(2, 7, 20)),
        Control("gateway-2 broken", override(BROKEN), r"gateway-2 answers on its API port not within", CONTAINERS,
                also=(2, 7, 20)),
        Control("gateway-2 on another Redis", override(OTHER_REDIS, REDIS_OTHER), r"gateway-\d knows .*does not share one Redis",
                CONTAINERS, also=(2, 20)),
        Control("per-replica limiter", override(OWN_LIMITER, ready=True), r"admitted \d+ jobs where one global limit admits .*not shared", CONTAINERS),
        Control("a worker that runs twice", worker_mode("twice"), r"executed more than once by the worker's log", also=(20,)),
        Control("a decider that denies everything", denies_everything, r"0 of \d+ jobs succeeded; .* ended denied", CONTAINERS,
                also=(20,)),
    ],
    limit_s=240.0,
    beside=True,
)
