"""Names, versions and images: what an object is called and made from."""

import re
from typing import Iterator, Tuple

from .. import jobs
from ..objects import Objects, dig, kind, label, listing, mapping, name

Found = Iterator[Tuple[str, str]]

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_SERVICE = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_PORT = re.compile(r"^(?=.{1,15}$)(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")

# The API version of each kind that we use: the one that both supported versions serve.
CURRENT = {
    "Namespace": "v1", "Service": "v1", "ConfigMap": "v1", "Secret": "v1", "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1",
    "Job": "batch/v1", "CronJob": "batch/v1",
    "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "NetworkPolicy": "networking.k8s.io/v1", "Ingress": "networking.k8s.io/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
}
# Pods take their host name from these; Kubernetes wants a label there.
_HOSTS = ("Namespace", "StatefulSet", "Job", "Deployment")


def names(objects: Objects) -> Found:
    """Names, port names and labels that Kubernetes accepts."""
    for obj in objects.all:
        form = _SERVICE if kind(obj) == "Service" else _LABEL if kind(obj) in _HOSTS else _SUBDOMAIN
        if not form.match(name(obj)):
            yield label(obj), f"the name {name(obj)!r} is not valid: lower-case letters, digits and dashes only"
        for key, value in mapping(dig(obj, "metadata", "labels")).items():
            if not _LABEL_KEY.match(str(key)) or not _LABEL_VALUE.match(str(value)):
                yield label(obj), f"the label {key}={value} is not valid"
        if kind(obj) == "Service":
            for port in listing(dig(obj, "spec", "ports")):
                yield from _port_name(label(obj), port.get("name"))
    for workload in objects.workloads():
        for container in workload.containers:
            if not _LABEL.match(str(container.get("name"))):
                yield workload.label, f"the container's name {container.get('name')!r} is not valid"
            for port in listing(container.get("ports")):
                yield from _port_name(workload.label, port.get("name"))
        for volume in listing(workload.pod.get("volumes")):
            if not _LABEL.match(str(volume.get("name"))):
                yield workload.label, f"the volume's name {volume.get('name')!r} is not valid"


def _port_name(where: str, port: object) -> Found:
    if port is not None and not _PORT.match(str(port)):
        yield where, f"the port name {port!r} is not valid: at most 15 lower-case letters, digits and dashes"


def unique(objects: Objects) -> Found:
    """One object per kind, namespace and name, all in one namespace; no name twice inside a pod."""
    seen = set()
    for obj in objects.all:
        key = (kind(obj), dig(obj, "metadata", "namespace"), name(obj))
        if key in seen:
            yield label(obj), "exists twice"
        seen.add(key)
    namespaces = {dig(obj, "metadata", "namespace") for obj in objects.all if kind(obj) != "Namespace"}
    if len(namespaces) > 1:
        yield "objects", f"are in several namespaces: {', '.join(sorted(map(str, namespaces)))}"
    for workload in objects.workloads():
        used = [("container", each.get("name")) for each in workload.containers]
        used += [("port", port) for port, _ in workload.ports() if port]
        used += [("port", number) for _, number in workload.ports()]
        used += [("volume", mapping(each).get("name")) for each in listing(workload.pod.get("volumes"))]
        for what in sorted({each for each in used if used.count(each) > 1}, key=str):
            yield workload.label, f"the {what[0]} {what[1]} exists twice in its pod"


def api_versions(objects: Objects) -> Found:
    """Every object has the current version of a kind that we know."""
    for obj in objects.all:
        wanted = CURRENT.get(kind(obj))
        if obj.get("apiVersion") != wanted:
            yield label(obj), f"apiVersion {obj.get('apiVersion')} is not current: {wanted or 'this kind is not expected here'}"


def images(objects: Objects) -> Found:
    """Every image is pinned to a version or a digest, so that all replicas run the same program."""
    for workload in objects.workloads():
        for container in workload.containers:
            image = str(container.get("image", ""))
            tag = image.rpartition("/")[2].partition(":")[2].partition("@")[0]
            if "@sha256:" not in image and not re.search(r"\d+\.\d+\.\d+", tag):
                yield workload.label, f"the image {image!r} is not pinned: name a whole version (1.2.3) or a digest"
            if tag and container.get("imagePullPolicy") == "Always":
                yield workload.label, f"the image {image!r} is pinned, so pulling it always only makes starts depend on the registry"


def jobs_by_content(objects: Objects) -> Found:
    """A Job's name ends with the hash of its content: a Job cannot be changed, only replaced."""
    for job in objects.of("Job"):
        wanted = jobs.content_hash(job)
        if not name(job).endswith(f"-{wanted}"):
            yield label(job), f"its name must end with the hash of its content, -{wanted}: run `make manifests-write`"
