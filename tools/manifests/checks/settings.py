"""The environment of containers, and whether the services know what they are given."""

import functools
import re
from pathlib import Path
from typing import Dict, Iterator, Set, Tuple

from ..objects import Objects, dig, listing, mapping

Found = Iterator[Tuple[str, str]]

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/settings.md"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def environment(objects: Objects) -> Found:
    """No variable twice, valid names, one that refers to another follows it, and each service replica has its own name."""
    for workload in objects.workloads():
        for container in workload.containers:
            used = [mapping(each).get("name") for each in listing(container.get("env"))]
            for variable in sorted({str(each) for each in used if used.count(each) > 1}):
                yield workload.label, f"{container.get('name')}: the variable {variable} is set twice"
            for place, each in enumerate(listing(container.get("env"))):
                for named in re.findall(r"\$\((\w+)\)", str(mapping(each).get("value", ""))):
                    if named not in used[:place]:
                        yield workload.label, f"{container.get('name')}: {used[place]} refers to $({named}), which does not stand above it"
            for variable in used:
                if not _NAME.match(str(variable)):
                    yield workload.label, f"{container.get('name')}: {variable!r} is not the name of a variable"
            if workload.labels.get("muster/role") == "service":
                instance = next((each for each in listing(container.get("env")) if each.get("name") == "MUSTER_INSTANCE_ID"), None)
                if dig(instance, "valueFrom", "fieldRef", "fieldPath") != "metadata.name":
                    yield workload.label, "MUSTER_INSTANCE_ID does not come from metadata.name: replicas would share a name"


@functools.lru_cache(maxsize=None)
def _documented() -> Dict[str, Set[str]]:
    """Variables of each service, from the generated page."""
    known: Dict[str, Set[str]] = {}
    service = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## muster-"):
            service = line[len("## muster-"):].strip()
            known[service] = set()
        found = re.match(r"^\| `([A-Z][A-Z0-9_]*)` \|", line)
        if found and service:
            known[service].add(found.group(1))
    return known


def known(objects: Objects) -> Found:
    """Every variable of a service, by itself or from a ConfigMap, is a setting of that service."""
    for workload in objects.workloads():
        if workload.labels.get("muster/role") != "service":
            continue
        service = str(workload.labels.get("app.kubernetes.io/component"))
        allowed = _documented().get(service)
        if allowed is None:
            yield workload.label, f"docs/reference/settings.md knows no service muster-{service}"
            continue
        for container in workload.containers:
            given = {str(mapping(each).get("name")) for each in listing(container.get("env"))}
            for source in listing(container.get("envFrom")):
                found = objects.get("ConfigMap", str(dig(source, "configMapRef", "name")))
                given |= set(mapping(mapping(found).get("data")))
            for variable in sorted(given):
                if re.sub(r"_FILE$", "", variable) not in allowed:
                    yield workload.label, f"{variable} is not a setting of muster-{service} (docs/reference/settings.md)"
