"""Gate 24, stores fail: clustered stores lose a node, or all of their addresses, and writes soon work again.

On six Redis and three NATS nodes, under load: a Redis primary is killed and stays down, the NATS node that
leads the stream of submits is killed and stays down, and then all six Redis nodes, and after them all three NATS
nodes, are stopped and come back with other addresses. Each time a whole round of submits over all shards must be accepted within 15 s, and
in the end every accepted job has its one end. Jobs are submitted with `durability: replicated`, which is
what the documents promise to survive the loss of a primary.
"""

import os
import time
from typing import Callable, Dict, List, Sequence, Set

from .. import Context, Control, Gate, Replica
from ..clusters import addresses, nodes, streams, whole, writes_back
from ..histories import check
from ..jobs import unique
from ..load import Load
from ..model import CONTAINERS
from ..plants import stopped
from ..stacks import engine

BACK_S = 15.0
RATE, WORK_MS = 12.0, 100
END_S = 150.0
STREAM = "MUSTER_SYS"


def run(ctx: Context) -> None:
    ctx.note("load average before", os.getloadavg()[0])
    whole(ctx, 60)
    topics = [unique("gate.stores.http"), unique("gate.stores.nats")]
    ctx.worker(topics[0], threads=12)
    ctx.worker(topics[1], "nats", threads=16, builtin="drill")
    faults: Dict[str, Callable[[Context, Load], float]] = {
        "Redis primary killed": loses_primary,
        "NATS stream leader killed": loses_stream_leader,
        "all Redis nodes at new addresses": redis_moves,
        "all NATS nodes at new addresses": nats_moves,
    }
    took: Dict[str, float] = {}
    for what, fault in faults.items():
        load = Load(ctx, topics, RATE, WORK_MS, durability="replicated").start()
        load.reach(40, 60)
        took[what] = round(fault(ctx, load), 1)
        load.reach(len(load.accepted) + 40, 60)
        load.stop()
        ctx.note(f"{what}: answers to submits", load.summary(load.answers))
        # A killed primary loses the writes of its last milliseconds: at most the jobs of one second may run again.
        check(ctx, what, load, END_S, forgiven=int(RATE))
        ctx.stack.wait_ready(60)
    ctx.count("faults after which writes were back in time", len(took), len(faults))
    ctx.note(f"seconds until writes were back (limit {BACK_S:.0f})", took)


def loses_primary(ctx: Context, load: Load) -> float:
    held = whole(ctx, 60)
    victim = ctx.random.choice(held)
    ctx.say(f"kill -9 of {victim.name}, a primary of {[each.name for each in held]}; it stays down")
    took = _away(ctx, "Redis primary killed", victim, load)
    now = [each.name for each in whole(ctx, 60)]
    ctx.note("Redis primaries before and after", [[each.name for each in held], now])
    ctx.expect(victim.name not in now, f"{victim.name} was killed and is still a primary: no replica took over")
    return took


def loses_stream_leader(ctx: Context, load: Load) -> float:
    led = streams(ctx)
    ctx.expect(led.get(STREAM), f"the stream {STREAM} has no leader: {led}")
    victim = next(node for node in nodes(ctx, "nats") if node.name == led[STREAM])
    ctx.say(f"kill -9 of {victim.name}, which leads {[name for name, by in led.items() if by == victim.name]}; it stays down")
    took = _away(ctx, "NATS stream leader killed", victim, load)
    ctx.note("NATS stream leaders before and after", [led, streams(ctx)])
    return took


def _away(ctx: Context, what: str, victim: Replica, load: Load) -> float:
    """Kills it and keeps it down until writes work again without it."""
    ctx.stack.kill9(victim, hold=True)
    since = time.monotonic()
    try:
        took = writes_back(ctx, what, load, since, BACK_S)
        # A while without it: jobs must also run.
        load.reach(len(load.accepted) + 30, 60)
    finally:
        ctx.stack.start(victim)
    return took


def redis_moves(ctx: Context, load: Load) -> float:
    took = changes_addresses(ctx, "Redis", load)
    whole(ctx, 60)
    return took


def nats_moves(ctx: Context, load: Load) -> float:
    took = changes_addresses(ctx, "NATS", load)
    led = ctx.poll(f"the stream {STREAM} has a leader", 60.0, lambda: streams(ctx).get(STREAM), every=0.5)
    ctx.note("NATS stream leader after the new addresses", led)
    return took


def changes_addresses(ctx: Context, store: str, load: Load) -> float:
    """No node may find another at an address that it remembers, so containers of ours take the old addresses."""
    service = store.lower()
    before = addresses(ctx, service)
    found = nodes(ctx, service)
    ctx.say(f"all {store} nodes are stopped and come back at other addresses")
    ctx.stack.stop_all(found)
    start_elsewhere(ctx, found, set(before.values()))
    since = time.monotonic()
    after = addresses(ctx, service)
    ctx.note(f"{store} addresses before and after", [before, after])
    again = sorted(set(before.values()) & set(after.values()))
    ctx.expect(not again, f"{store} nodes came back at old addresses, so nothing is proven: {again}")
    return writes_back(ctx, f"all {store} nodes at new addresses", load, since, BACK_S)


def start_elsewhere(ctx: Context, stopped_nodes: Sequence[Replica], old: Set[str]) -> None:
    """The engine gives the lowest free address to the next container. Where that is an old one, an idle container
    takes it and keeps it until all nodes run."""
    told = engine.inspect([node.container for node in stopped_nodes if node.container])
    image, network = told[0]["Image"], next(iter(told[0]["NetworkSettings"]["Networks"]))
    idle: List[str] = []
    try:
        for node in stopped_nodes:
            while True:
                probe = engine.docker("run", "--detach", "--network", network, image, "sleep", "120").strip()
                if engine.inspect([probe])[0]["NetworkSettings"]["Networks"][network]["IPAddress"] not in old:
                    engine.docker("rm", "--force", probe)
                    break
                idle.append(probe)
            ctx.stack.start(node)
    finally:
        if idle:
            engine.docker("rm", "--force", *idle)


GATE = Gate(
    number=24,
    name="stores fail",
    passes_when="clustered stores lose a primary, a stream leader, then all addresses: writes back within 15 s, nothing lost",
    run=run,
    controls=[
        Control("healer off", stopped(["redis-healer"]), r"all Redis nodes at new addresses: writes were not back within 15 s", CONTAINERS),
    ],
    needs=CONTAINERS,
    overlays=("ha", "cluster"),
    limit_s=600.0,
)
