"""Kubernetes' own schemas, by kubernetes-validate, for the oldest and the newest version that we support.

Every warning is a failure: a kind without a schema is either ours to check (ServiceMonitor) or wrong.
"""

import functools
import json
from typing import Iterator, Optional

import kubernetes_validate
from kubernetes_validate import utils

from .findings import Finding
from .objects import Objects, kind, label

# The floor is 1.30: since then a node does the preStop sleep.
VERSIONS = ("1.30.0", "1.37.0")
# Kinds of the Prometheus operator, which Kubernetes does not know; checks/monitoring.py reads them.
CUSTOM = {("monitoring.coreos.com/v1", "ServiceMonitor")}

# One file holds the definitions of a whole version; reading it again for each object takes seconds.
utils.schema_contents = functools.lru_cache(maxsize=None)(utils.schema_contents)


def findings(objects: Objects) -> Iterator[Finding]:
    """What the schemas refuse."""
    for obj in objects.all:
        if (obj.get("apiVersion"), kind(obj)) in CUSTOM:
            continue
        for version in VERSIONS:
            refused = _refused(json.dumps(obj, sort_keys=True), version)
            if refused:
                yield Finding("schema", label(obj), refused)


@functools.lru_cache(maxsize=None)
def _refused(text: str, version: str) -> Optional[str]:
    """What this version has against the object, or None. Remembered: most variants share most objects."""
    obj = json.loads(text)
    try:
        kubernetes_validate.validate(obj, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        return f"Kubernetes {version} refuses {where or 'it'}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError:
        return f"Kubernetes {version} has no {kind(obj)} in {obj.get('apiVersion')}"
    except Exception as error:  # noqa: BLE001 - any other complaint is a failure as well
        return f"kubernetes-validate {version}: {type(error).__name__}: {error}"
    return None
