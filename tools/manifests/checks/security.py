"""Pod Security level `restricted`, and a little more: read-only root, no token, no service links."""

from typing import Any, Dict, Iterator, Tuple

from ..objects import Objects, dig, label, listing, mapping

Found = Iterator[Tuple[str, str]]

_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "ephemeral"}


def restricted(objects: Objects) -> Found:
    """What the namespace's Pod Security level would refuse, and what we ask beyond it."""
    for workload in objects.workloads():
        pod = workload.pod
        own = mapping(pod.get("securityContext"))
        if not own:
            yield workload.label, "its pod has no securityContext"
        for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            if pod.get(field):
                yield workload.label, f"has {field}"
        if pod.get("automountServiceAccountToken") is not False:
            yield workload.label, "automountServiceAccountToken is not false: no program here talks to Kubernetes"
        if pod.get("enableServiceLinks") is not False:
            yield workload.label, "enableServiceLinks is not false: Kubernetes would add variables that look like settings"
        for volume in listing(pod.get("volumes")):
            for bad in sorted(set(mapping(volume)) - _VOLUMES - {"name"}):
                yield workload.label, f"the volume {volume.get('name')!r} is a {bad}, which `restricted` refuses"
        for container in workload.containers:
            for what in _container(own, container):
                yield workload.label, f"{container.get('name')}: {what}"


def _container(pod: Dict[str, Any], container: Dict[str, Any]) -> Iterator[str]:
    own = mapping(container.get("securityContext"))
    if not own:
        yield "has no securityContext"
        return
    both = {**pod, **own}
    if both.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if both.get("runAsUser") is None:
        yield "runAsUser is not set"
    elif both["runAsUser"] == 0 or both.get("runAsGroup") == 0:
        yield "runs as root (user or group 0)"
    if own.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem is not true"
    if "ALL" not in listing(dig(own, "capabilities", "drop")) or dig(own, "capabilities", "add"):
        yield "does not drop all capabilities"
    if dig(both, "seccompProfile", "type") not in ("RuntimeDefault", "Localhost"):
        yield "has no seccompProfile"
    if any(mapping(port).get("hostPort") for port in listing(container.get("ports"))):
        yield "has a hostPort"


def namespace(objects: Objects) -> Found:
    """Where we make the namespace, it enforces `restricted`."""
    for each in objects.of("Namespace"):
        for mode in ("enforce", "audit", "warn"):
            level = dig(each, "metadata", "labels", f"pod-security.kubernetes.io/{mode}")
            if level != "restricted":
                yield label(each), f"Pod Security: {mode} is {level!r}, not 'restricted'"
