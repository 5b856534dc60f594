"""Asks a Prometheus every selector and every whole query, and says which it cannot answer.

A query may answer nothing only where a healthy stack need not have its series; series.py lists those
with the reason.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, NamedTuple

from . import promql, series
from .expressions import VARIABLES, Source


class Findings(NamedTuple):
    """How many were asked, what is wrong, and what was rightly empty (query → reason)."""

    asked: int
    wrong: List[str]
    empty: Dict[str, str]


def ask(url: str, query: str) -> List[Dict[str, Any]]:
    """An instant query; ValueError with Prometheus's words when it is refused."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=15) as answer:
            data = json.load(answer)["data"]
    except urllib.error.HTTPError as refused:
        raise ValueError(json.load(refused).get("error", "refused")) from None
    return data["result"] if data["resultType"] == "vector" else [{"metric": {}, "value": data["result"]}]


def check(url: str, sources: List[Source], known: Dict[str, series.Series]) -> Findings:
    """Asks everything."""
    wrong: List[str] = []
    empty: Dict[str, str] = {}
    answered: Dict[str, bool] = {}
    for source in sources:
        text = promql.fill(source.text, VARIABLES)
        try:
            expression = promql.read(text)
            wrong += [f"{source.place}: {source.name}: {fault}" for fault in series.faults(expression, known)]
            result = ask(url, text)
        except ValueError as fault:
            wrong.append(f"{source.place}: {source.name}: {fault}")
            continue
        for selector in expression.selectors:
            key = str(selector)
            if key not in answered:
                answered[key] = _selector(url, selector, known, wrong, empty)
        # An alert that does not fire answers nothing, and so does a panel that compares.
        rare = any(not answered.get(str(s), True) or _rare(s, known) for s in expression.selectors)
        compares = any(mark in text for mark in (">", "<", "==", "!="))
        if not result and source.kind != "alert" and not rare and not compares:
            wrong.append(f"{source.place}: {source.name}: Prometheus answers nothing to {text}")
    return Findings(len(answered), sorted(set(wrong)), empty)


def _rare(selector: promql.Selector, known: Dict[str, series.Series]) -> bool:
    its = known.get(selector.metric)
    return series.chosen(selector) or (its is not None and bool(its.rare))


def _selector(
    url: str, selector: promql.Selector, known: Dict[str, series.Series], wrong: List[str], empty: Dict[str, str]
) -> bool:
    """True if the selector has a series now, each with the labels that it is asked by."""
    its = known.get(selector.metric)
    if its is None:
        return False
    found = ask(url, str(selector))
    if found:
        asked = {label for label, _, _ in selector.matchers}
        missing = [label for label in sorted(asked) if not any(label in each["metric"] for each in found)]
        wrong += [f"{selector} has no label {label} in the live scrape" for label in missing]
        return True
    if its.rare:
        empty[str(selector)] = its.rare
    elif series.chosen(selector) and ask(url, selector.metric):
        empty[str(selector)] = "this outcome has not happened"
    else:
        wrong.append(f"no live series for {selector}")
    return False
