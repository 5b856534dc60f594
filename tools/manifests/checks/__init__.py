"""The cross-checks: what Kubernetes' schemas cannot say, because it is about values or several objects.

A check is a function that takes Objects and yields (where, what is wrong). A new check is one function
and one line in CHECKS; tests/test_faults.py asks for a fault that it finds.
"""

from typing import Callable, Iterator, Tuple

from ..findings import Finding
from ..objects import Objects
from . import identity, lifecycle, monitoring, network, references, resources, scaling, security, settings, stores

Check = Callable[[Objects], Iterator[Tuple[str, str]]]

CHECKS: Tuple[Check, ...] = (
    identity.names,
    identity.unique,
    identity.api_versions,
    identity.images,
    identity.jobs_by_content,
    references.selectors,
    references.services,
    references.configuration,
    references.mounts,
    resources.quantities,
    resources.requests,
    resources.claims,
    lifecycle.probes,
    lifecycle.stopping,
    lifecycle.spread,
    scaling.autoscalers,
    scaling.disruption,
    security.restricted,
    security.namespace,
    settings.environment,
    settings.known,
    network.policies,
    network.flows,
    monitoring.service_monitors,
    stores.stateful,
    stores.capacity,
)


def findings(objects: Objects) -> Iterator[Finding]:
    """What the checks found. A check that cannot read an object says so instead of ending the run."""
    for check in CHECKS:
        name = check.__name__.replace("_", "-")
        try:
            for where, what in check(objects):
                yield Finding(name, where, what)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            yield Finding(name, "objects", f"cannot be read: {type(error).__name__}: {error}")
