"""What a dashboard is made of, and how it becomes Grafana's JSON.

A board is rows of panels. Places and ids follow from the order, so they can neither overlap nor
repeat. Every panel has a description, a unit, and a legend for each query: the constructors ask for
them.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One picture. `queries` are pairs of expression and legend."""

    kind: str
    title: str
    description: str
    unit: str
    queries: Sequence[Tuple[str, str]]
    width: int = 12
    height: int = 8
    options: Dict[str, Any] = field(default_factory=dict)
    custom: Dict[str, Any] = field(default_factory=dict)
    # (from, colour): the first is the base.
    steps: Sequence[Tuple[float, str]] = ()


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the page: the values of a label."""

    name: str
    title: str
    metric: str
    label: str


@dataclass(frozen=True)
class Board:
    """One page."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()


def graph(title: str, description: str, unit: str, *queries: Tuple[str, str], width: int = 12, stack: bool = False,
          height: int = 8) -> Panel:
    """Lines over time; stacked areas where parts make a whole."""
    custom: Dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if stack else 8, "showPoints": "never"}
    if stack:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, description, unit, queries, width, height, options, custom)


def number(title: str, description: str, unit: str, query: str, legend: str, width: int = 4,
           steps: Sequence[Tuple[float, str]] = ((0, "green"),)) -> Panel:
    """One number now, coloured by its limits."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "auto",
    }
    return Panel("stat", title, description, unit, [(query, legend)], width, 4, options, steps=steps)


def table(title: str, description: str, unit: str, query: str, width: int = 12, height: int = 8) -> Panel:
    """The labels and values of one query, now."""
    return Panel("table", title, description, unit, [(query, "{{pod}}")], width, height, {"showHeader": True})


def render(board: Board) -> Dict[str, Any]:
    """The board as Grafana reads it."""
    panels: List[Dict[str, Any]] = []
    top = 0
    for row in board.rows:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}})
        top, left, tallest = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return {
        "__generated": "by tools/dashboards; do not edit, run `make dashboards`",
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["muster"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [{"type": "dashboards", "tags": ["muster"], "title": "Muster", "asDropdown": True,
                   "includeVars": True, "keepTime": True, "icon": "external link", "targetBlank": False, "url": ""}],
        "annotations": {"list": [_alerts()]},
        "templating": {"list": [_source(), *map(_variable, board.variables)]},
        "panels": panels,
    }


def _panel(panel: Panel, number_: int, place: Dict[str, int]) -> Dict[str, Any]:
    now = panel.kind == "table"
    steps = [{"color": colour, "value": None if n == 0 else limit} for n, (limit, colour) in enumerate(panel.steps)]
    defaults: Dict[str, Any] = {"unit": panel.unit, "custom": panel.custom, "min": 0}
    if steps:
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number_,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": panel.options,
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "range": not now,
             "instant": now, **({"format": "table"} if now else {})}
            for n, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> Dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0,
            "current": {}, "refresh": 1}


def _variable(variable: Variable) -> Dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {"name": variable.name, "label": variable.title, "type": "query", "datasource": SOURCE, "hide": 0,
            "query": {"query": query, "refId": variable.name}, "definition": query, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def _alerts() -> Dict[str, Any]:
    return {"name": "Alerts", "datasource": SOURCE, "enable": True, "hide": False, "iconColor": "red",
            "expr": 'ALERTS{alertstate="firing",alertname=~"Muster.+"}', "titleFormat": "{{alertname}}",
            "step": "15s"}
