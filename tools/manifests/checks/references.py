"""What objects say about each other: selectors, ports, configuration, volumes."""

from typing import Any, Dict, Iterator, Optional, Tuple

from ..objects import Objects, Workload, dig, label, listing, mapping, name, selects

Found = Iterator[Tuple[str, str]]


def selectors(objects: Objects) -> Found:
    """A workload selects its own pods and no others; a Service selects pods of one workload."""
    for workload in objects.workloads():
        selector = dig(workload.obj, "spec", "selector")
        if workload.kind in ("Job", "CronJob"):
            continue
        if not mapping(selector):
            yield workload.label, "has no selector"
        elif not selects(selector, workload.labels):
            yield workload.label, "its selector does not match the labels of its own pods"
        else:
            for other in objects.workloads():
                if other.obj is not workload.obj and selects(selector, other.labels):
                    yield workload.label, f"its selector matches the pods of {other.label} too"
    for service in objects.of("Service"):
        count = len(_behind(objects, service))
        if count != 1:
            yield label(service), f"its selector matches the pods of {count} workloads, not of one"


def _behind(objects: Objects, service: Dict[str, Any]) -> list:
    wanted = mapping(dig(service, "spec", "selector"))
    return [each for each in objects.workloads() if wanted and selects({"matchLabels": wanted}, each.labels)]


def services(objects: Objects) -> Found:
    """Every port of a Service leads to a port of its pods, and has a name of its own."""
    for service in objects.of("Service"):
        ports = listing(dig(service, "spec", "ports"))
        if not ports:
            yield label(service), "has no port"
        port_names = [port.get("name") for port in ports]
        if len(set(port_names)) != len(port_names) or None in port_names:
            yield label(service), "a port has no name, or two have the same"
        for workload in _behind(objects, service):
            for port in ports:
                target = port.get("targetPort", port.get("port"))
                if not workload.has_port(target):
                    yield label(service), f"its port {port.get('name')} leads to {target!r}, which {workload.label} does not have"


def configuration(objects: Objects) -> Found:
    """Every ConfigMap, Secret and claim that a pod names exists and has the key."""
    for workload in objects.workloads():
        for wanted_kind, wanted, key in _named(workload):
            if f"{wanted_kind}/{wanted}" in objects.external:
                continue
            found = objects.get(wanted_kind, str(wanted))
            if found is None:
                yield workload.label, f"needs the {wanted_kind} {wanted!r}, which does not exist"
            elif key is not None and key not in _keys(found):
                yield workload.label, f"needs the key {key!r} of the {wanted_kind} {wanted!r}, which has {sorted(_keys(found))}"
        for secret in listing(workload.pod.get("imagePullSecrets")):
            if not mapping(secret).get("name"):
                yield workload.label, "an imagePullSecret has no name"


def _keys(obj: Dict[str, Any]) -> set:
    return {key for part in ("data", "stringData", "binaryData") for key in mapping(obj.get(part))}


def _named(workload: Workload) -> Iterator[Tuple[str, Any, Optional[str]]]:
    """Kind, name and key of all configuration that the pod cannot start without."""
    for container in workload.containers:
        for source in listing(container.get("envFrom")):
            for field, wanted_kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                reference = mapping(mapping(source).get(field))
                if reference and not reference.get("optional"):
                    yield wanted_kind, reference.get("name"), None
        for variable in listing(container.get("env")):
            for field, wanted_kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                reference = mapping(dig(variable, "valueFrom", field))
                if reference and not reference.get("optional"):
                    yield wanted_kind, reference.get("name"), reference.get("key")
    for volume in listing(workload.pod.get("volumes")):
        for field, wanted_kind, called in (
            ("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"),
            ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
        ):
            reference = mapping(mapping(volume).get(field))
            if reference and not reference.get("optional"):
                items = [mapping(item).get("key") for item in listing(reference.get("items"))]
                for key in items or [None]:
                    yield wanted_kind, reference.get(called), key


def mounts(objects: Objects) -> Found:
    """Every mount has its volume, every volume is mounted, and no two mounts have one path."""
    for workload in objects.workloads():
        volumes = {mapping(each).get("name") for each in listing(workload.pod.get("volumes"))}
        volumes |= {name(claim) for claim in workload.claims}
        mounted = set()
        for container in workload.containers:
            paths = []
            for mount in listing(container.get("volumeMounts")):
                mounted.add(mount.get("name"))
                paths.append(mount.get("mountPath"))
                if mount.get("name") not in volumes:
                    yield workload.label, f"mounts the volume {mount.get('name')!r}, which does not exist"
            if len(set(paths)) != len(paths):
                yield workload.label, "mounts two volumes at the same path"
        for unused in sorted(map(str, volumes - mounted)):
            yield workload.label, f"the volume {unused!r} is mounted nowhere"
