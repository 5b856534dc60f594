"""What a dashboard must be, checked on the finished JSON: the file is judged, not what made it."""

import re
from typing import Any, Dict, List, Sequence

from . import promql, series

# Units of Grafana that the boards use; a typing error would show raw numbers.
UNITS = {"none", "s", "ops", "reqps", "bytes", "percentunit"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def lint(boards: Dict[str, Dict[str, Any]], known: Dict[str, series.Series]) -> List[str]:
    """Faults of these dashboards (by file name); empty if there are none."""
    wrong: List[str] = []
    for key in ("uid", "title"):
        values = [board.get(key) for board in boards.values()]
        wrong += [f"two dashboards have the {key} {value!r}" for value in set(values) if values.count(value) > 1]
    for name, board in boards.items():
        wrong += [f"{name}: {fault}" for fault in _board(board, known)]
    return wrong


def _board(board: Dict[str, Any], known: Dict[str, series.Series]) -> List[str]:
    wrong = [] if board.get("description") else ["the dashboard has no description"]
    variables = [each["name"] for each in board["templating"]["list"]]
    first = board["templating"]["list"][0] if variables else {}
    if (first.get("name"), first.get("type")) != ("datasource", "datasource"):
        wrong.append("the first variable must choose the datasource")
    ids = [panel.get("id") for panel in board["panels"]]
    wrong += [f"two panels have the id {each}" for each in sorted(set(ids)) if ids.count(each) > 1]
    wrong += _overlaps(board["panels"])
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
    wrong += [f"two panels are called {each!r}" for each in sorted(set(titles)) if titles.count(each) > 1]
    for panel in board["panels"]:
        if panel["type"] != "row":
            wrong += [f"panel {panel['title']!r}: {fault}" for fault in _panel(panel, variables, known)]
    return wrong


def _panel(panel: Dict[str, Any], variables: Sequence[str], known: Dict[str, series.Series]) -> List[str]:
    wrong = []
    if len(panel.get("description", "")) < 15:
        wrong.append("no description")
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if unit not in UNITS:
        wrong.append(f"unknown unit {unit!r}")
    if panel.get("datasource") != SOURCE:
        wrong.append("the datasource is not the variable ${datasource}")
    if not panel.get("targets"):
        wrong.append("no query")
    letters = [target["refId"] for target in panel.get("targets", [])]
    if len(set(letters)) != len(letters):
        wrong.append("two queries have the same refId")
    for target in panel.get("targets", []):
        if target.get("datasource") != SOURCE:
            wrong.append(f"query {target['refId']}: the datasource is not the variable ${{datasource}}")
        if not target.get("legendFormat"):
            wrong.append(f"query {target['refId']}: no legend")
        used = {name for name in _dollars(target["expr"]) if not name.startswith("__")}
        wrong += [f"query {target['refId']}: unknown variable ${each}" for each in sorted(used - set(variables))]
        try:
            expression = promql.read(target["expr"])
        except promql.Unreadable as fault:
            wrong.append(f"query {target['refId']}: {fault}")
            continue
        wrong += [f"query {target['refId']}: {fault}" for fault in series.faults(expression, known)]
    return wrong


def _dollars(text: str) -> List[str]:
    return re.findall(r"\$\{?(\w+)", text)


def _overlaps(panels: List[Dict[str, Any]]) -> List[str]:
    wrong, taken = [], {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > 24:
            wrong.append(f"panel {panel['title']!r} is wider than the page")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    wrong.append(f"panels {other!r} and {panel['title']!r} overlap")
    return sorted(set(wrong))
