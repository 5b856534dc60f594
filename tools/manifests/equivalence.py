"""Whether chart and Kustomize make the same objects.

Names that end with a hash differ by nature, and so do the labels by which Helm knows its own. Secrets
hold placeholders in one and values in the other: their keys are compared. The namespace is made by
Kustomize only; Helm's user makes it. Everything else must be equal.
"""

import re
from typing import Any, Dict, Iterator, List

from .findings import Finding
from .objects import Objects, kind, label, listing, mapping, name

_HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")
_SUFFIX = re.compile(r"-(?:[a-z0-9]{10}|[0-9a-f]{8})$")
_NOT_IN_CHART = ("Namespace",)


def differences(one: str, left: Objects, two: str, right: Objects) -> Iterator[Finding]:
    """What differs between two renderings."""
    lefts, rights = _by_label(left), _by_label(right)
    for missing in sorted(set(lefts) - set(rights)):
        yield Finding("equivalence", missing, f"is in {one}, but not in {two}")
    for missing in sorted(set(rights) - set(lefts)):
        yield Finding("equivalence", missing, f"is in {two}, but not in {one}")
    for both in sorted(set(lefts) & set(rights)):
        for path in _compare(lefts[both], rights[both], ""):
            yield Finding("equivalence", both, f"{path} ({one} against {two})")


def _by_label(objects: Objects) -> Dict[str, Any]:
    hashed = {name(obj): _SUFFIX.sub("", name(obj)) for obj in objects.of("ConfigMap", "Secret", "Job")}
    found: Dict[str, Any] = {}
    for obj in objects.all:
        if kind(obj) in _NOT_IN_CHART:
            continue
        plain = _plain(obj, hashed)
        if kind(obj) == "Secret":
            plain = {**plain, "data": sorted({*mapping(obj.get("data")), *mapping(obj.get("stringData"))})}
            plain.pop("stringData", None)
        found[label(plain)] = plain
    return found


def _plain(value: Any, hashed: Dict[str, str]) -> Any:
    """The value without hashes in names and without Helm's labels."""
    if isinstance(value, dict):
        return {key: _plain(each, hashed) for key, each in value.items() if key not in _HELM_LABELS}
    if isinstance(value, list):
        return [_plain(each, hashed) for each in value]
    return hashed.get(value, value) if isinstance(value, str) else value


def _compare(left: Any, right: Any, path: str) -> List[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [line for key in sorted({*left, *right}) for line in _compare(left.get(key), right.get(key), f"{path}.{key}")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        # Environment variables have no order that matters, except where one refers to another.
        if path.endswith(".env") and not any("$(" in str(variable.get("value")) for variable in [*left, *right]):
            left, right = (sorted(each, key=lambda variable: str(variable.get("name"))) for each in (left, right))
        return [line for number, pair in enumerate(zip(listing(left), listing(right))) for line in _compare(*pair, f"{path}[{number}]")]
    return [] if left == right else [f"{path[1:] or 'it'} is {left!r} and {right!r}"]
