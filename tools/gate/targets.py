"""Checks that Prometheus scrapes every replica, each under its own name.

Instant queries do not show this: for five minutes after a target is gone or a replica has another name, Prometheus
answers with the last sample. So this asks the replicas first, then the list of targets. A series counts only if it
comes from a scrape of this run.
"""

import re
import time
from datetime import datetime
from typing import Any, Dict, List, Set

from .context import Context
from .prometheus import Prometheus
from .stacks.base import OUR_SERVICES, Replica


def every_replica_by_name(ctx: Context, prometheus: Prometheus, patience_s: float) -> Dict[str, Set[str]]:
    """Red unless each replica has its own `pod`, is a target that answers, and has that `pod` in Prometheus. Returns the
    names by service."""
    began = time.time()
    replicas = [each for service in OUR_SERVICES for each in ctx.stack.replicas(service)]
    pods = ctx.poll("every replica answers a scrape", patience_s, lambda: {each: pod_of(ctx, each) for each in replicas})
    one_pod_each(ctx, pods)

    def seen() -> bool:
        targets_answer(ctx, replicas, prometheus.get("targets", state="active")["data"]["activeTargets"], began)
        for replica, pod in pods.items():
            found = {sample.labels.get("pod") for sample in prometheus.ask(f'muster_build_info{{instance="{replica.target}"}}')}
            ctx.expect(found == {pod}, f"{replica.target} says that it is {pod}; Prometheus has {sorted(map(str, found))}")
        return True

    ctx.poll("every replica is scraped", patience_s, seen, every=0.5)
    names = {service: {pods[each] for each in replicas if each.service == service} for service in OUR_SERVICES}
    for service, found in names.items():
        ctx.count(f"replicas of {service} in Prometheus", len(found), len(ctx.stack.replicas(service)))
    return names


def pod_of(ctx: Context, replica: Replica) -> str:
    """The value of the label `pod` in the metrics of a replica."""
    text = ctx.stack.scrape(replica)
    found = set(re.findall(r'[{,]pod="([^"]*)"', text))
    ctx.expect(len(found) == 1, f"{replica.target} should have one pod in its metrics and has {sorted(found)}")
    bare = [line for line in text.splitlines() if line.startswith("muster_") and 'pod="' not in line]
    ctx.expect(not bare, f"{replica.target} has a series without pod: {bare[:1]}")
    return found.pop()


def one_pod_each(ctx: Context, pods: Dict[Replica, str]) -> None:
    """Red if two replicas have the same `pod`: their series would be mixed up."""
    by_pod: Dict[str, List[str]] = {}
    for replica, pod in pods.items():
        by_pod.setdefault(pod, []).append(str(replica.target))
    shared = [f"{' and '.join(sorted(targets))} have one pod, {pod}" for pod, targets in sorted(by_pod.items()) if len(targets) > 1]
    ctx.expect(not shared, "; ".join(shared))


def targets_answer(ctx: Context, replicas: List[Replica], active: List[Dict[str, Any]], since: float) -> None:
    """Red unless each replica is a target under the job of its service and was scraped since then."""
    known = {(each["labels"].get("job"), each["labels"].get("instance")): each for each in active}
    for replica in replicas:
        target = known.get((f"muster-{replica.service}", replica.target))
        others = sorted(str(instance) for job, instance in known if job == f"muster-{replica.service}")
        ctx.expect(target, f"{replica.target} is not a target of Prometheus: of job muster-{replica.service} it has {others}")
        assert target is not None
        ctx.expect(target["health"] == "up", f"the target {replica.target} is {target['health']}: {target['lastError']}")
        ctx.expect(moment(target["lastScrape"]) > since, f"the target {replica.target} was not scraped in this run yet")


def moment(text: str) -> float:
    """The whole seconds since 1970 of a time in the notation of Prometheus."""
    return datetime.fromisoformat(re.sub(r"\.\d+", "", text).replace("Z", "+00:00")).timestamp()
