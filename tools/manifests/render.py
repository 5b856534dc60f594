"""Renders what is checked: Kustomize folders and the Helm chart, each in the variants a user would take."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

import yaml

from .objects import Objects

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/muster"
# Secrets that a chart needs; as any user would give them. Nothing real.
CHART_SECRETS = (
    "--set", "secrets.apiKey=an-api-key-for-rendering",
    "--set", "secrets.redisPassword=redisPasswordForRendering",
    "--set", "secrets.natsPassword=natsPasswordForRendering",
)


class RenderError(Exception):
    """The renderer refused; its own words."""


@dataclass(frozen=True)
class Variant:
    """One thing to render: a Kustomize folder, or the chart with values."""

    name: str
    folder: str = ""
    helm: Tuple[str, ...] = ()
    # Secrets that the user makes beforehand.
    external: Tuple[str, ...] = ()

    def render(self) -> Objects:
        """The objects of this variant."""
        return Objects(load(self.text()), self.external)

    def text(self) -> str:
        """The YAML of this variant."""
        if self.folder:
            return run([str(ROOT / "tools/manifests/kustomize.sh"), str(ROOT / self.folder)])
        return run([helm(), "template", "muster", str(CHART), "--namespace", "muster", *self.helm])


KUSTOMIZE = (
    Variant("base", "deploy/k8s/base", external=("Secret/muster-api", "Secret/muster-stores")),
    Variant("overlays/ha", "deploy/k8s/overlays/ha"),
    Variant("overlays/own-stores", "deploy/k8s/overlays/own-stores"),
    Variant("everything", "tools/manifests/variants/everything"),
)
HELM = (
    Variant("chart", helm=CHART_SECRETS),
    Variant("chart with its own stores", helm=(
        "--set", "stores.enabled=false", "--set", "secrets.apiKey=an-api-key-for-rendering",
        "--set", "secrets.redisUrl=rediss://:pw@redis.example:6380", "--set", "secrets.natsUrl=tls://nats.example:4222")),
    Variant("chart with existing secrets", external=(
        "Secret/my-api", "Secret/my-stores", "Secret/my-passwords"), helm=(
        "--set", "secrets.existing.api=my-api", "--set", "secrets.existing.stores=my-stores",
        "--set", "secrets.existing.storePasswords=my-passwords")),
    Variant("chart with everything", helm=(
        *CHART_SECRETS, "--set", "monitoring.enabled=true", "--set", "traces.enabled=true", "--set", "demoWorker.enabled=true")),
)
VARIANTS = (*KUSTOMIZE, *HELM)
# Chart and Kustomize that must be the same.
PAIRS = (("overlays/ha", "chart"), ("overlays/own-stores", "chart with its own stores"), ("everything", "chart with everything"))


def variant(name: str) -> Variant:
    """The variant of this name; LookupError when there is none."""
    for each in VARIANTS:
        if each.name == name:
            return each
    raise LookupError(f"unknown variant {name!r}; there are: {', '.join(each.name for each in VARIANTS)}")


def run(command: List[str]) -> str:
    """What the command prints; RenderError with its complaint when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        # Helm mentions every symbolic link in the chart; that is no complaint.
        said = [line for line in (done.stderr or done.stdout).splitlines() if "found symbolic link" not in line and line.strip()]
        raise RenderError(f"{Path(command[0]).name} failed: {' '.join(said)}")
    return done.stdout


def helm() -> str:
    """The helm of the tool environment, which is the one that runs this Python."""
    beside = Path(sys.executable).with_name("helm")
    return str(beside) if beside.exists() else os.environ.get("HELM", "helm")


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that comes twice: PyYAML silently keeps the last, as would kubectl."""


def _unique(loader: yaml.Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise RenderError(f"key {key!r} twice in one mapping, line {key_node.start_mark.line + 1}")
        seen.add(key)
    loader.flatten_mapping(node)
    return yaml.constructor.BaseConstructor.construct_mapping(loader, node, deep)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, lambda l, n: _unique(l, n, True))
# "=" is a plain word in YAML 1.2, PyYAML stumbles over it.
_Loader.add_constructor("tag:yaml.org,2002:value", lambda l, n: str(n.value))


def load(text: str) -> List[dict]:
    """The objects of a YAML stream; List objects taken apart."""
    return [obj for obj in yaml.load_all(text, Loader=_Loader) if obj]
