"""How many pods run: autoscalers and disruption budgets."""

from typing import Any, Iterator, Optional, Tuple

from ..objects import Objects, Workload, dig, label, listing, mapping, selects

Found = Iterator[Tuple[str, str]]


def autoscalers(objects: Objects) -> Found:
    """An autoscaler has a target, a range, and no rival that fixes the number of replicas."""
    for hpa in objects.of("HorizontalPodAutoscaler"):
        target = mapping(dig(hpa, "spec", "scaleTargetRef"))
        found = next((each for each in objects.workloads() if objects.autoscaler(each) is hpa), None)
        if found is None:
            yield label(hpa), f"scales {target.get('kind')}/{target.get('name')}, which does not exist"
            continue
        if target.get("apiVersion") != found.obj.get("apiVersion"):
            yield label(hpa), f"names its target by apiVersion {target.get('apiVersion')}"
        least, most = dig(hpa, "spec", "minReplicas") or 1, dig(hpa, "spec", "maxReplicas")
        if not isinstance(most, int) or not isinstance(least, int) or least > most:
            yield label(hpa), f"minReplicas {least} is above maxReplicas {most}"
        elif least < 1:
            yield label(hpa), f"minReplicas {least} is below 1"
        if "replicas" in mapping(found.obj.get("spec")):
            yield found.label, "fixes `replicas`, which each apply would set back against its autoscaler"
        for metric in listing(dig(hpa, "spec", "metrics")):
            resource = dig(metric, "resource", "name")
            missing = [each.get("name") for each in found.containers if resource not in mapping(dig(each, "resources", "requests"))]
            if dig(metric, "resource", "target", "type") == "Utilization" and missing:
                yield label(hpa), f"measures {resource} against requests, which {missing} does not have"


def replicas(objects: Objects, workload: Workload) -> int:
    """The least number of pods that are meant to run."""
    hpa = objects.autoscaler(workload)
    number = dig(hpa, "spec", "minReplicas") if hpa else dig(workload.obj, "spec", "replicas")
    return number if isinstance(number, int) else 1


def disruption(objects: Objects) -> Found:
    """Every long-running workload has one budget, with maxUnavailable 1, and it lets a node be drained."""
    covered = {}
    for pdb in objects.of("PodDisruptionBudget"):
        spec = mapping(pdb.get("spec"))
        least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
        behind = [each for each in objects.workloads() if spec.get("selector") and selects(spec["selector"], each.labels)]
        if len(behind) != 1:
            yield label(pdb), f"its selector matches the pods of {len(behind)} workloads, not of one"
        for each in behind:
            if each.label in covered:
                yield label(pdb), f"{each.label} has another budget, {covered[each.label]}; Kubernetes then evicts nothing"
            covered[each.label] = label(pdb)
        if least is not None and most is not None:
            yield label(pdb), "has both minAvailable and maxUnavailable; only one is allowed"
            continue
        for each in behind:
            count = replicas(objects, each)
            left = _evictions(least, most, count)
            if left is None or left < 1:
                yield label(pdb), f"leaves no eviction: with {count} replicas no node of {each.label} can be drained"
            elif most != 1:
                yield label(pdb), "must have maxUnavailable: 1, so that a primary and its replica never go together"
    for workload in objects.workloads():
        if workload.kind in ("Deployment", "StatefulSet") and workload.label not in covered:
            yield workload.label, "has no PodDisruptionBudget"


def _evictions(least: Any, most: Any, count: int) -> Optional[int]:
    def amount(value: Any) -> int:
        # Kubernetes rounds both up.
        return -(-count * int(value[:-1]) // 100) if isinstance(value, str) else int(value)

    try:
        if most is not None:
            return amount(most)
        return count - amount(least) if least is not None else None
    except ValueError:
        return None
