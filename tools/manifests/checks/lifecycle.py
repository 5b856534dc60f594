"""How pods start, stay alive, stop, and where they run."""

from typing import Any, Dict, Iterator, Tuple

from ..objects import Objects, Workload, dig, listing, mapping, selects

Found = Iterator[Tuple[str, str]]

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# A service stops within 15 s of SIGTERM (docs/operate.md).
STOP_SECONDS = 15
# Kubernetes' defaults, and the smallest values that it accepts.
_NUMBERS = {"initialDelaySeconds": (0, 0), "periodSeconds": (10, 1), "timeoutSeconds": (1, 1),
            "successThreshold": (1, 1), "failureThreshold": (3, 1)}


def probes(objects: Objects) -> Found:
    """Probes ask ports that exist, with sensible numbers; services and stores have all three, and what else always runs
    has a readinessProbe."""
    for workload in objects.workloads():
        for container in workload.containers:
            for kind in PROBES:
                if kind in container:
                    yield from _probe(workload, kind, mapping(container[kind]))
        main = workload.containers[0] if workload.containers else {}
        for kind in _wanted(workload):
            if kind not in main:
                yield workload.label, f"has no {kind}"


def _wanted(workload: Workload) -> Tuple[str, ...]:
    """The probes that a workload must have. A Job ends, which says all. A worker takes its work itself, and its image
    has nothing to ask."""
    if is_server(workload):
        return PROBES
    ends, works = workload.kind in ("Job", "CronJob"), "muster/worker" in workload.labels
    return () if ends or works else ("readinessProbe",)


def is_server(workload: Workload) -> bool:
    """Whether clients depend on these pods: services of Muster, and the stores."""
    return workload.kind == "StatefulSet" or workload.labels.get("muster/role") == "service"


def _probe(workload: Workload, kind: str, probe: Dict[str, Any]) -> Found:
    ways = [way for way in ("httpGet", "tcpSocket", "exec", "grpc") if way in probe]
    if len(ways) != 1:
        yield workload.label, f"its {kind} must ask in one way, not in {len(ways)}"
        return
    port = dig(probe, ways[0], "port")
    if ways[0] != "exec" and not workload.has_port(port):
        yield workload.label, f"its {kind} asks the port {port!r}, which the pod does not have"
    numbers = {}
    for field, (default, least) in _NUMBERS.items():
        numbers[field] = probe.get(field, default)
        if not isinstance(numbers[field], int) or numbers[field] < least:
            yield workload.label, f"its {kind} has {field} {numbers[field]!r}; at least {least} is allowed"
            return
    if kind != "readinessProbe" and numbers["successThreshold"] != 1:
        yield workload.label, f"its {kind} must have successThreshold 1"
    if numbers["timeoutSeconds"] > numbers["periodSeconds"]:
        yield workload.label, f"its {kind} waits {numbers['timeoutSeconds']} s for an answer but asks every {numbers['periodSeconds']} s"


def stopping(objects: Objects) -> Found:
    """The grace period is longer than the preStop sleep and the 15 s in which a service stops."""
    for workload in objects.workloads():
        if workload.kind in ("Job", "CronJob"):
            continue
        grace = workload.pod.get("terminationGracePeriodSeconds", 30)
        for container in workload.containers:
            before = dig(container, "lifecycle", "preStop", "sleep", "seconds") or 0
            if not isinstance(before, int) or not isinstance(grace, int) or grace <= before + STOP_SECONDS:
                yield workload.label, (f"terminationGracePeriodSeconds {grace} is not longer than preStop ({before} s) "
                                       f"and stopping ({STOP_SECONDS} s)")
        if workload.labels.get("muster/role") == "service":
            for container in workload.containers:
                if not dig(container, "lifecycle", "preStop"):
                    yield workload.label, "has no preStop sleep: it would stop before load balancers forget it"


def spread(objects: Objects) -> Found:
    """Servers spread over nodes; what a constraint says is valid and about their own pods."""
    for workload in objects.workloads():
        constraints = [mapping(each) for each in listing(workload.pod.get("topologySpreadConstraints"))]
        if is_server(workload) and "kubernetes.io/hostname" not in [each.get("topologyKey") for each in constraints]:
            yield workload.label, "its replicas are not spread over nodes"
        for each in constraints:
            if each.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
                yield workload.label, (f"whenUnsatisfiable {each.get('whenUnsatisfiable')!r} is not valid: "
                                       "DoNotSchedule or ScheduleAnyway")
            for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if each.get(field, "Honor") not in ("Honor", "Ignore"):
                    yield workload.label, f"{field} {each.get(field)!r} is not valid: Honor or Ignore"
            if not isinstance(each.get("maxSkew"), int) or each["maxSkew"] < 1:
                yield workload.label, f"maxSkew {each.get('maxSkew')!r} is not a number above zero"
            if not selects(each.get("labelSelector"), workload.labels) or not each.get("labelSelector"):
                yield workload.label, "a spread constraint does not select the workload's own pods"
            for key in listing(each.get("matchLabelKeys")):
                if key in mapping(dig(each, "labelSelector", "matchLabels")):
                    yield workload.label, f"a spread constraint has the label {key!r} in labelSelector and in matchLabelKeys; Kubernetes refuses that"
                if key not in workload.labels and key != "pod-template-hash":
                    yield workload.label, f"a spread constraint names the label {key!r}, which its pods do not have"
