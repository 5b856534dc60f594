"""ServiceMonitors of the Prometheus operator. Kubernetes' schemas do not hold them, so this check does."""

from typing import Iterator, Tuple

from ..objects import Objects, dig, label, listing, mapping, selects

Found = Iterator[Tuple[str, str]]

_SPEC = {"selector", "endpoints", "namespaceSelector", "jobLabel", "targetLabels", "podTargetLabels"}
_ENDPOINT = {"port", "path", "interval", "scrapeTimeout", "honorLabels", "honorTimestamps", "relabelings", "metricRelabelings", "scheme"}


def service_monitors(objects: Objects) -> Found:
    """A ServiceMonitor selects Services, scrapes ports that they have, and keeps the label `pod`."""
    for monitor in objects.of("ServiceMonitor"):
        spec = mapping(monitor.get("spec"))
        for field in sorted(set(spec) - _SPEC):
            yield label(monitor), f"has an unknown field spec.{field}"
        chosen = [each for each in objects.of("Service")
                  if spec.get("selector") and selects(spec["selector"], mapping(dig(each, "metadata", "labels")))]
        if not chosen:
            yield label(monitor), "its selector matches no Service"
        if not listing(spec.get("endpoints")):
            yield label(monitor), "scrapes nothing: it has no endpoint"
        for endpoint in listing(spec.get("endpoints")):
            for field in sorted(set(mapping(endpoint)) - _ENDPOINT):
                yield label(monitor), f"has an unknown field endpoints.{field}"
            if endpoint.get("honorLabels") is not True:
                yield label(monitor), "honorLabels is not true: the label `pod` of our metrics would be lost"
            for service in chosen:
                ports = [mapping(each).get("name") for each in listing(dig(service, "spec", "ports"))]
                if endpoint.get("port") not in ports:
                    yield label(monitor), f"scrapes the port {endpoint.get('port')!r}, which {label(service)} does not have"
    scraped = [mapping(dig(each, "spec", "selector")) for each in objects.of("ServiceMonitor")]
    for service in objects.of("Service"):
        labels = mapping(dig(service, "metadata", "labels"))
        if scraped and "muster/metrics" in labels and not any(selects(each, labels) for each in scraped):
            yield label(service), "no ServiceMonitor scrapes it"
