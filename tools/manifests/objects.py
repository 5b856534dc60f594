"""A view of rendered objects: find them by kind and name, see the pods that they will start.

The view survives faulty objects: what is missing or of another type reads as empty, because finding
the fault is the work of schema and checks.
"""

import copy
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

Object = Dict[str, Any]

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")


def mapping(value: Any) -> Dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> List[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def dig(value: Any, *path: str) -> Any:
    """The value at this path, or None."""
    for key in path:
        value = mapping(value).get(key)
    return value


def kind(obj: Object) -> str:
    """The object's kind."""
    return str(obj.get("kind", ""))


def name(obj: Object) -> str:
    """The object's name."""
    return str(dig(obj, "metadata", "name") or "")


def label(obj: Object) -> str:
    """How reports call the object."""
    return f"{kind(obj)}/{name(obj)}"


def selects(selector: Any, labels: Dict[str, Any]) -> bool:
    """Whether a label selector (matchLabels, matchExpressions) selects these labels. An empty one does."""
    for key, value in mapping(mapping(selector).get("matchLabels")).items():
        if labels.get(key) != value:
            return False
    for expression in listing(mapping(selector).get("matchExpressions")):
        key, operator, values = expression.get("key"), expression.get("operator"), expression.get("values") or []
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(operator, False)
        if not holds:
            return False
    return True


@dataclass(frozen=True)
class Workload:
    """An object that starts pods."""

    obj: Object

    @property
    def label(self) -> str:
        return label(self.obj)

    @property
    def kind(self) -> str:
        return kind(self.obj)

    @property
    def template(self) -> Object:
        path = ("spec", "jobTemplate", "spec", "template") if self.kind == "CronJob" else ("spec", "template")
        return mapping(dig(self.obj, *path))

    @property
    def pod(self) -> Dict[str, Any]:
        return mapping(self.template.get("spec"))

    @property
    def labels(self) -> Dict[str, Any]:
        return mapping(dig(self.template, "metadata", "labels"))

    @property
    def containers(self) -> List[Dict[str, Any]]:
        """All containers, initial ones first."""
        return [mapping(each) for key in ("initContainers", "containers") for each in listing(self.pod.get(key))]

    @property
    def claims(self) -> List[Object]:
        """Claims that the object makes for each of its pods."""
        return [mapping(each) for each in listing(dig(self.obj, "spec", "volumeClaimTemplates"))]

    def ports(self) -> Iterator[Tuple[Optional[str], Any]]:
        """Name and number of every port of the pod."""
        for container in self.containers:
            for port in listing(container.get("ports")):
                yield mapping(port).get("name"), mapping(port).get("containerPort")

    def has_port(self, wanted: Any) -> bool:
        """Whether a port has this name or number."""
        return any(wanted is not None and wanted in (port_name, number) for port_name, number in self.ports())


class Objects:
    """All objects of one rendering, in order. `external` are those that the user makes: `Secret/muster-api`."""

    def __init__(self, objects: List[Object], external: Tuple[str, ...] = ()) -> None:
        self.all = objects
        self.external = external

    def copy(self) -> "Objects":
        """A copy that may be changed."""
        return Objects(copy.deepcopy(self.all), self.external)

    def of(self, *kinds: str) -> List[Object]:
        """The objects of these kinds."""
        return [obj for obj in self.all if kind(obj) in kinds]

    def get(self, wanted_kind: str, wanted_name: str) -> Optional[Object]:
        """One object, or None."""
        return next((obj for obj in self.of(wanted_kind) if name(obj) == wanted_name), None)

    def workloads(self) -> List[Workload]:
        """Everything that starts pods."""
        return [Workload(obj) for obj in self.of(*WORKLOADS)]

    def autoscaler(self, workload: Workload) -> Optional[Object]:
        """The autoscaler of this workload, or None."""
        for hpa in self.of("HorizontalPodAutoscaler"):
            target = mapping(dig(hpa, "spec", "scaleTargetRef"))
            if (target.get("kind"), target.get("name")) == (workload.kind, name(workload.obj)):
                return hpa
        return None
