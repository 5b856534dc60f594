"""What clustered stores need from Kubernetes."""

import re
from decimal import Decimal
from typing import Iterator, Optional, Tuple

from ..objects import Objects, dig, listing, mapping, name
from ..quantity import parse

Found = Iterator[Tuple[str, str]]


def stateful(objects: Objects) -> Found:
    """Nodes start together, find each other before they are ready, and the healer knows them all."""
    for workload in objects.workloads():
        if workload.kind != "StatefulSet":
            continue
        spec = workload.obj["spec"]
        if spec.get("podManagementPolicy") != "Parallel":
            yield workload.label, "podManagementPolicy is not Parallel: after a full stop the first node would wait for the others for ever"
        service = objects.get("Service", str(spec.get("serviceName")))
        if service is None:
            yield workload.label, f"its serviceName {spec.get('serviceName')!r} is no Service"
        else:
            if dig(service, "spec", "clusterIP") != "None":
                yield workload.label, f"its Service {name(service)} is not headless: pods get no names"
            if dig(service, "spec", "publishNotReadyAddresses") is not True:
                yield workload.label, f"its Service {name(service)} hides nodes that are not ready (publishNotReadyAddresses)"
    redis = objects.get("StatefulSet", "redis")
    if redis is None:
        return
    nodes = [f"redis-{number}.{redis['spec'].get('serviceName')}" for number in range(int(redis["spec"].get("replicas", 0)))]
    operators = [each for each in objects.workloads() if each.labels.get("muster/redis") == "operator"]
    if {each.kind for each in operators} != {"Job", "Deployment"}:
        yield "StatefulSet/redis", "needs a Job that makes the cluster and a Deployment that heals it"
    for workload in operators:
        for container in workload.containers:
            known = next((each.get("value") for each in container.get("env", []) if each.get("name") == "REDIS_NODES"), "")
            if str(known).split() != nodes:
                yield workload.label, f"REDIS_NODES is {known!r}, but the nodes are {' '.join(nodes)}"


# Redis and NATS write sizes in their own way: 1gb is 1024³ bytes in the one, 8GB in the other as well.
_SIZE = re.compile(r"^(\d+)\s*(k|m|g|t)b?$", re.IGNORECASE)


def _bytes(text: object) -> Optional[Decimal]:
    found = _SIZE.match(str(text))
    return Decimal(found.group(1)) * Decimal(1024) ** (1 + "kmgt".index(found.group(2).lower())) if found else None


def capacity(objects: Objects) -> Found:
    """A store refuses writes before Kubernetes ends it: Redis below its memory, NATS below its disk."""
    for workload in objects.workloads():
        if workload.kind != "StatefulSet":
            continue
        for container in workload.containers:
            for variable in listing(container.get("env")):
                if mapping(variable).get("name") != "REDIS_MAXMEMORY":
                    continue
                most, limit = _bytes(variable.get("value")), parse(dig(container, "resources", "limits", "memory"))
                if most is None or limit is None or most * 4 > limit * 3:
                    yield workload.label, f"REDIS_MAXMEMORY {variable.get('value')} leaves no room below the memory limit"
    nats = objects.get("StatefulSet", "nats")
    if nats is None:
        return
    files = [mapping(each.get("data")).get("nats.conf", "") for each in objects.of("ConfigMap")]
    stored = re.search(r"max_file_store:\s*(\w+)", "".join(files))
    disk = parse(dig(nats["spec"]["volumeClaimTemplates"][0], "spec", "resources", "requests", "storage"))
    most = _bytes(stored.group(1)) if stored else None
    if most is None or disk is None or most >= disk:
        yield "StatefulSet/nats", f"max_file_store {stored.group(1) if stored else None} is not below the size of its claim"
