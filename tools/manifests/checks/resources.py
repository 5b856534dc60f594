"""Amounts: what a pod asks for, may use, and keeps on disk."""

from typing import Any, Iterator, Tuple

from ..objects import Objects, dig, label, listing, mapping, name
from ..quantity import parse

Found = Iterator[Tuple[str, str]]


def quantities(objects: Objects) -> Found:
    """Every amount is one that Kubernetes can read."""
    for workload in objects.workloads():
        for container in workload.containers:
            for part in ("requests", "limits"):
                for what, amount in mapping(dig(container, "resources", part)).items():
                    yield from _readable(workload.label, f"{container.get('name')}: {part}.{what}", amount)
        for volume in listing(workload.pod.get("volumes")):
            limit = dig(volume, "emptyDir", "sizeLimit")
            if limit is not None:
                yield from _readable(workload.label, f"volume {volume.get('name')}", limit)
        for claim in workload.claims:
            for what, amount in mapping(dig(claim, "spec", "resources", "requests")).items():
                yield from _readable(workload.label, f"claim {name(claim)}: {what}", amount)


def _readable(where: str, what: str, amount: Any) -> Found:
    value = parse(amount)
    if value is None:
        yield where, f"{what} is {amount!r}, which is not a quantity: write 64Mi, 500m or 2"
    elif value <= 0:
        yield where, f"{what} is {amount!r}, which is not above zero"


def requests(objects: Objects) -> Found:
    """Every container asks for CPU and memory, has limits, and asks for no more than its limits."""
    for workload in objects.workloads():
        for container in workload.containers:
            asked, allowed = (mapping(dig(container, "resources", part)) for part in ("requests", "limits"))
            for what in ("cpu", "memory"):
                if what not in asked or what not in allowed:
                    yield workload.label, f"{container.get('name')} has no request or no limit of {what}"
            for what in sorted(set(asked) & set(allowed)):
                wanted, limit = parse(asked[what]), parse(allowed[what])
                if wanted is not None and limit is not None and wanted > limit:
                    yield workload.label, f"{container.get('name')} requests {asked[what]} of {what}, above its limit {allowed[what]}"


def claims(objects: Objects) -> Found:
    """A claim says how it is accessed and how large it is."""
    all_claims = [(workload.label, claim) for workload in objects.workloads() for claim in workload.claims]
    all_claims += [(label(claim), claim) for claim in objects.of("PersistentVolumeClaim")]
    for where, claim in all_claims:
        modes = listing(dig(claim, "spec", "accessModes"))
        if not modes:
            yield where, f"the claim {name(claim)!r} has no access mode"
        for mode in modes:
            if mode not in ("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany"):
                yield where, f"the claim {name(claim)!r} has an unknown access mode {mode!r}"
        if dig(claim, "spec", "resources", "requests", "storage") is None:
            yield where, f"the claim {name(claim)!r} says no size"
