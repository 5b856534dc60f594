"""Where the project's PromQL is: the rules of deploy/prometheus, the panels of deploy/grafana, the example of deploy/keda.

Rules are read by PyYAML, which the tool environment has (tools/scripts/python_tools.sh); who has a
running Prometheus can ask it for its rules instead (`from_api`) and needs nothing.
"""

import json
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules"
BOARDS = ROOT / "deploy/grafana/dashboards"
KEDA = ROOT / "deploy/keda"
# The values of Grafana variables in queries that are sent to Prometheus directly.
VARIABLES = {"topic": ".*", "pod": ".*", "__rate_interval": "1m", "__range": "1h"}


class Source(NamedTuple):
    """One expression: its location, its name and its text."""

    place: str
    name: str
    text: str
    kind: str


def rule_groups() -> Dict[str, Dict[str, Any]]:
    """The rule files by name."""
    import yaml  # type: ignore[import-untyped]

    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))}


def rules() -> List[Source]:
    """Every rule of deploy/prometheus/rules."""
    found = []
    for name, file in rule_groups().items():
        for group in file["groups"]:
            for rule in group["rules"]:
                kind = "alert" if "alert" in rule else "record"
                found.append(Source(f"rules/{name}", rule[kind], rule["expr"], kind))
    return found


def from_api(groups: Dict[str, Any]) -> List[Source]:
    """The rules that a Prometheus has loaded, from the answer of /api/v1/rules."""
    found = []
    for group in groups["data"]["groups"]:
        for rule in group["rules"]:
            kind = "alert" if rule["type"] == "alerting" else "record"
            found.append(Source(group["name"], rule["name"], rule["query"], kind))
    return found


def boards() -> Dict[str, Dict[str, Any]]:
    """The committed dashboards by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(BOARDS.glob("*.json"))}


def panels() -> List[Source]:
    """Every query of every committed dashboard."""
    found = []
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                found.append(Source(f"dashboards/{name}", f"{panel['title']} {target['refId']}", target["expr"], "panel"))
    return found


def scalers() -> List[Source]:
    """Every query of the examples for KEDA."""
    found = []
    for path in sorted(KEDA.glob("*.yaml")):
        # A plain scalar on a line of its own; the file is checked as YAML by dashboards.checks.
        for query in re.findall(r"^\s+query: (.+)$", path.read_text(), re.MULTILINE):
            found.append(Source(f"keda/{path.name}", path.stem, query, "scaler"))
    return found


def any_topic(sources: List[Source]) -> List[Source]:
    """The same for any topic: a stack need not have the topic of an example."""
    return [each._replace(text=re.sub(r'topic="[^"]*"', 'topic=~".*"', each.text)) for each in sources]


def recordings(sources: List[Source]) -> Dict[str, str]:
    """Names and texts of the recording rules among these."""
    return {each.name: each.text for each in sources if each.kind == "record"}
