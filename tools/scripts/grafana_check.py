#!/usr/bin/env python3
"""Asks a running Grafana to take the dashboards and to answer each of their queries.

usage: grafana_check.py URL      user from GRAFANA_USER (admin); password from GRAFANA_PASSWORD, else .env, else admin

It imports each dashboard into a folder of its own, asks the query of every panel through Grafana, and
removes the folder again. Exit code 1 if a dashboard is refused or a query fails.
"""

import base64
import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from dashboards import expressions, promql  # noqa: E402

FOLDER = "muster-check"


def password() -> str:
    """As compose finds it: the environment, the file that `make secrets` writes, the image's own default."""
    try:
        written = re.findall(r"^GRAFANA_PASSWORD=(.+)$", (ROOT / ".env").read_text(), re.MULTILINE)
    except OSError:
        written = []
    return os.environ.get("GRAFANA_PASSWORD") or (written[-1] if written else "admin")


class Grafana:
    """One Grafana, by its HTTP API."""

    def __init__(self, url: str) -> None:
        login = f"{os.environ.get('GRAFANA_USER', 'admin')}:{password()}"
        self.url = url.rstrip("/")
        self.headers = {
            "Authorization": "Basic " + base64.b64encode(login.encode()).decode(),
            "Content-Type": "application/json",
        }

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; OSError with Grafana's words when it refuses."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise OSError(f"{method} {path}: {refused.code} {refused.read().decode(errors='replace')[:300]}") from None
        except urllib.error.URLError as away:
            raise OSError(f"{method} {self.url}{path}: {away.reason}") from None


def prometheus_of(grafana: Grafana) -> str:
    """The uid of a Prometheus that Grafana knows."""
    found = [each["uid"] for each in grafana.ask("GET", "/api/datasources") if each["type"] == "prometheus"]
    if not found:
        raise OSError("this Grafana has no Prometheus as a datasource")
    return found[0]


def refused(grafana: Grafana, board: Dict[str, Any], folder: str) -> List[str]:
    """Imports a copy of a dashboard; what Grafana says against it."""
    copy = {**board, "uid": f"check-{board['uid']}", "title": f"{board['title']} (check)", "id": None}
    try:
        grafana.ask("POST", "/api/dashboards/db", {"dashboard": copy, "folderUid": folder, "overwrite": True})
    except OSError as fault:
        return [f"{board['title']}: refused: {fault}"]
    return []


def queries(grafana: Grafana, board: Dict[str, Any], source: str) -> List[str]:
    """Asks every query of a dashboard over the last ten minutes; the faults."""
    wrong = []
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expr = promql.fill(target["expr"], expressions.VARIABLES)
            query = {"refId": "A", "datasource": {"type": "prometheus", "uid": source}, "expr": expr, "range": True,
                     "intervalMs": 15000, "maxDataPoints": 100}
            answer = grafana.ask("POST", "/api/ds/query", {"queries": [query], "from": "now-10m", "to": "now"})
            fault = answer["results"]["A"].get("error")
            if fault:
                wrong.append(f"{board['title']}: {panel['title']}: {fault}")
    return wrong


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    grafana, wrong = Grafana(sys.argv[1]), []
    try:
        source = prometheus_of(grafana)
        folder = grafana.ask("POST", "/api/folders", {"uid": FOLDER, "title": "Muster check"})["uid"]
        try:
            for name, board in expressions.boards().items():
                found = refused(grafana, board, folder) or queries(grafana, board, source)
                wrong += found
                print(f"{'FAIL' if found else 'ok':4}  {name}")
        finally:
            grafana.ask("DELETE", f"/api/folders/{folder}?forceDeleteRules=true")
    except OSError as fault:
        wrong.append(str(fault))
    for fault in wrong:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
