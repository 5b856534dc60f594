"""The clustered stores as their nodes report them: the primaries, the leaders of streams, the addresses."""

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
# One round of submits: enough for each shard to get some, because the hash of a key chooses its shard.
ROUND = 18


def nodes(ctx: Context, service: str) -> List[Replica]:
    """The nodes of a store."""
    found = ctx.stack.replicas(service)
    ctx.expect(len(found) > 1, f"{service} is not clustered here: {len(found)} node")
    return found


class View(NamedTuple):
    """What a Redis node reports about its cluster."""

    node: Replica
    serves_all: bool
    slots: bool
    followed: bool


def views(ctx: Context) -> List[View]:
    """Asks every running node once, all in parallel: a command in a container is slow."""
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
    """Waits until all nodes see all hash slots served and each primary has a replica; returns the primaries."""

    def seen() -> List[Replica]:
        found = views(ctx)
        missing = sorted({node.name for node in nodes(ctx, "redis")} - {view.node.name for view in found if view.serves_all})
        ctx.expect(not missing, f"{', '.join(missing)} do not see all slots served")
        primaries = [view for view in found if view.slots]
        alone = [view.node.name for view in primaries if not view.followed]
        ctx.expect(len(primaries) == PRIMARIES and not alone, f"{len(primaries)} primaries, without a replica {alone}")
        return [view.node for view in primaries]

    return ctx.poll("the Redis cluster is whole", timeout, seen, every=0.5)


def addresses(ctx: Context, service: str) -> Dict[str, str]:
    """The address of each node in the project's network, by node."""
    found = {}
    for each in engine.inspect([node.container for node in nodes(ctx, service) if node.container]):
        name = each["Config"]["Labels"]["com.docker.compose.service"]
        found[name] = ",".join(sorted(net["IPAddress"] for net in each["NetworkSettings"]["Networks"].values()))
    return found


def streams(ctx: Context) -> Dict[str, str]:
    """The leader of each stream, by stream, from the first NATS node that answers."""
    last = "no node runs"
    for node in nodes(ctx, "nats"):
        if node.state != "running":
            continue
        code, said = ctx.stack.inside(node, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/jsz?accounts=true&streams=true")
        if code == 0:
            found = json.loads(said)
            return {stream["name"]: stream.get("cluster", {}).get("leader", "")
                    for account in found.get("account_details", []) for stream in account.get("stream_detail", [])}
        last = said
    raise Red(f"no NATS node reports its streams: {last[:200]}")


def writes_back(ctx: Context, what: str, load: Load, since: float, limit: float) -> float:
    """Waits until a whole round of submits, over all shards and gateways, is accepted; returns the seconds."""
    while True:
        answers = load.probe(ROUND)
        took = time.monotonic() - since
        if all(answer.status == 202 for answer in answers):
            ctx.say(f"{what}: writes are back after {took:.1f} s")
            return took
        if took > limit:
            raise Red(f"{what}: writes were not back within {limit:.0f} s: {Load.summary(answers)}")
        time.sleep(0.2)
