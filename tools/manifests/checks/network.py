"""Who may talk to whom, by the NetworkPolicies: that policies are about something, and enough of them."""

from typing import Any, Dict, Iterator, List, Tuple
from urllib.parse import urlsplit

from ..objects import Objects, Workload, dig, label, listing, mapping, selects

Found = Iterator[Tuple[str, str]]

# Connections without which Muster does not work: from, to, port. Told apart by one label each.
_NEEDED = (
    ("muster/stores", "client", "redis", "redis"),
    ("muster/stores", "client", "nats", "client"),
    ("muster/redis", "operator", "redis", "redis"),
    ("muster/worker", "nats", "nats", "client"),
    ("app.kubernetes.io/component", "redis", "redis", "redis"),
    ("app.kubernetes.io/component", "redis", "redis", "cluster-bus"),
    ("app.kubernetes.io/component", "nats", "nats", "cluster"),
)


def policies(objects: Objects) -> Found:
    """Everything is denied by default; a policy selects pods that exist and names ports that they have."""
    denied = [each for each in objects.of("NetworkPolicy") if dig(each, "spec", "podSelector") == {}
              and not dig(each, "spec", "ingress") and not dig(each, "spec", "egress")
              and set(listing(dig(each, "spec", "policyTypes"))) == {"Ingress", "Egress"}]
    if not denied:
        yield "objects", "no NetworkPolicy denies everything by default"
    for policy in objects.of("NetworkPolicy"):
        chosen = _chosen(objects, dig(policy, "spec", "podSelector"))
        if not chosen:
            yield label(policy), "its podSelector matches no pod"
        types = listing(dig(policy, "spec", "policyTypes"))
        for direction, peers_field in (("ingress", "from"), ("egress", "to")):
            rules = listing(dig(policy, "spec", direction))
            if rules and direction.capitalize() not in types:
                yield label(policy), f"has {direction} rules, but policyTypes does not name {direction.capitalize()}"
            for rule in rules:
                targets = chosen
                for peer in listing(mapping(rule).get(peers_field)):
                    if "podSelector" not in peer or "namespaceSelector" in peer:
                        continue
                    found = _chosen(objects, peer["podSelector"])
                    if not found:
                        yield label(policy), f"{direction}: the peer {peer['podSelector']} matches no pod"
                    if direction == "egress":
                        targets = found
                for port in listing(mapping(rule).get("ports")):
                    named = mapping(port).get("port")
                    if isinstance(named, str) and not any(each.has_port(named) for each in targets):
                        yield label(policy), f"{direction}: no pod has the port {named!r}"


def _chosen(objects: Objects, selector: Any) -> List[Workload]:
    return [each for each in objects.workloads() if selector is not None and selects(selector, each.labels)]


def flows(objects: Objects) -> Found:
    """What must talk, may: name resolution, every client with its store, seen from both sides, and services with the
    collector of traces that their settings name."""
    for workload in objects.workloads():
        if not _may(objects, workload, "egress", None, 53):
            yield workload.label, "no NetworkPolicy lets it ask for names (port 53)"
        if workload.labels.get("muster/role") == "service" and workload.has_port("http"):
            if not _may(objects, workload, "ingress", None, "http"):
                yield workload.label, "no NetworkPolicy lets clients reach its port http"
    for key, value, component, port in _NEEDED:
        sources = [each for each in objects.workloads() if each.labels.get(key) == value]
        targets = [each for each in objects.workloads() if each.kind == "StatefulSet"
                   and each.labels.get("app.kubernetes.io/component") == component]
        for source in sources:
            for target in targets:
                if not _may(objects, source, "egress", target, port):
                    yield source.label, f"no NetworkPolicy lets it out to {target.label}, port {port}"
                if not _may(objects, target, "ingress", source, port):
                    yield target.label, f"no NetworkPolicy lets {source.label} in, port {port}"


    for config in objects.of("ConfigMap"):
        collector = mapping(config.get("data")).get("OTEL_EXPORTER_OTLP_ENDPOINT")
        if not collector:
            continue
        place = urlsplit(str(collector))
        port = place.port or (443 if place.scheme == "https" else 80)
        for workload in objects.workloads():
            if workload.labels.get("muster/role") == "service" and not _may(objects, workload, "egress", None, port):
                yield workload.label, f"no NetworkPolicy lets it out to the collector of traces, port {port}"


def _may(objects: Objects, workload: Workload, direction: str, other: Any, port: Any) -> bool:
    """Whether a policy of this workload allows this direction, this other side (None: anything) and port."""
    peers_field = "from" if direction == "ingress" else "to"
    for policy in objects.of("NetworkPolicy"):
        if not selects(dig(policy, "spec", "podSelector"), workload.labels):
            continue
        for rule in listing(dig(policy, "spec", direction)):
            peers = listing(mapping(rule).get(peers_field))
            reached = not peers or other is None or any(
                "podSelector" in peer and selects(peer["podSelector"], other.labels) for peer in peers)
            ports = [mapping(each).get("port") for each in listing(mapping(rule).get("ports"))]
            server = workload if direction == "ingress" else other
            if reached and (not ports or any(_same(server, each, port) for each in ports)):
                return True
    return False


def _same(server: Any, one: Any, two: Any) -> bool:
    """Whether two ways to say a port of this workload, by name and by number, mean the same."""
    if one == two:
        return True
    numbers: Dict[Any, Any] = dict(server.ports()) if server else {}
    return numbers.get(one, one) == numbers.get(two, two)
