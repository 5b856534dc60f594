"""The clustered stores as their nodes tell it: who is a primary, who leads a stream, at which address."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, NamedTuple

from .context import Context
from .load import Load
from .model import Red
from .stacks import engine
from .stacks.base import Replica

PRIMARIES = 3
# One round of submits: enough that each shard gets some, since a key's shard is chosen by its hash.
ROUND = 18


def nodes(ctx: Context, service: str) -> List[Replica]:
    """The nodes of a store."""
    found = ctx.stack.replicas(service)
    ctx.expect(len(found) > 1, f"{service} is not clustered here: {len(found)} node")
    return found


class View(NamedTuple):
    """What a Redis node says of its cluster."""

    node: Replica
    serves_all: bool
    slots: bool
    followed: bool


def views(ctx: Context) -> List[View]:
    """Asks every node that runs, all at once and each only once: a container is slow to enter."""
    running = [node for node in nodes(ctx, "redis") if node.state == "running"]
    with ThreadPoolExecutor(len(running) or 1) as pool:
        return list(pool.map(lambda node: _view(ctx, node), running))


def _view(ctx: Context, node: Replica) -> View:
    # The password is in the container's environment.
    code, said = ctx.stack.inside(node, "sh", "-c", "redis-cli CLUSTER INFO; redis-cli CLUSTER NODES; redis-cli INFO replication")
    if code != 0:
        raise Red(f"{node.name} does not answer: {said[:200]}")
    mine = next((line.split() for line in said.splitlines() if "myself" in line), [])
    serves_all = "cluster_state:ok" in said and "cluster_slots_ok:16384" in said
    return View(node, serves_all, len(mine) > 8, "state=online" in said)


def whole(ctx: Context, timeout: float) -> List[Replica]:
    """Waits until all nodes see all slots served, and each primary has a replica that follows it; the primaries."""

    def seen() -> List[Replica]:
        told = views(ctx)
        missing = sorted({node.name for node in nodes(ctx, "redis")} - {view.node.name for view in told if view.serves_all})
        ctx.expect(not missing, f"{', '.join(missing)} do not see all slots served")
        held = [view for view in told if view.slots]
        alone = [view.node.name for view in held if not view.followed]
        ctx.expect(len(held) == PRIMARIES and not alone, f"{len(held)} primaries, without a replica {alone}")
        return [view.node for view in held]

    return ctx.poll("the Redis cluster is whole", timeout, seen, every=0.5)


def addresses(ctx: Context, service: str) -> Dict[str, str]:
    """Node → its address in the project's network."""
    found = {}
    for each in engine.inspect([node.container for node in nodes(ctx, service) if node.container]):
        name = each["Config"]["Labels"]["com.docker.compose.service"]
        found[name] = ",".join(sorted(net["IPAddress"] for net in each["NetworkSettings"]["Networks"].values()))
    return found


def streams(ctx: Context) -> Dict[str, str]:
    """Stream → the node that leads it, as the first NATS node that answers tells it."""
    last = "no node runs"
    for node in nodes(ctx, "nats"):
        if node.state != "running":
            continue
        code, said = ctx.stack.inside(node, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/jsz?accounts=true&streams=true")
        if code == 0:
            told = json.loads(said)
            return {stream["name"]: stream.get("cluster", {}).get("leader", "")
                    for account in told.get("account_details", []) for stream in account.get("stream_detail", [])}
        last = said
    raise Red(f"no NATS node tells its streams: {last[:200]}")


def writes_back(ctx: Context, what: str, load: Load, since: float, limit: float) -> float:
    """Waits until a whole round of submits, over all shards and gateways, is accepted; the seconds."""
    while True:
        answers = load.probe(ROUND)
        took = time.monotonic() - since
        if all(answer.status == 202 for answer in answers):
            ctx.say(f"{what}: writes are back after {took:.1f} s")
            return took
        if took > limit:
            raise Red(f"{what}: writes were not back within {limit:.0f} s: {Load.summary(answers)}")
        time.sleep(0.2)
