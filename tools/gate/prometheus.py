"""A Prometheus for a gate: the compose stack's own, or one on this host for the processes of `muster dev`.

`url` answers queries about every replica of the stack. A Prometheus that was started here ends with the gate.
"""

import json
import shutil
import socket
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any, Dict, List, Optional

from .context import Context
from .model import Red, Skip
from .stacks.base import OUR_SERVICES, Sample, request


class Prometheus:
    """Sends queries to one Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """An answer of its API; Red with its text if it refuses."""
        answer = request("GET", f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=15)
        if answer.status != 200 or not isinstance(answer.json, dict):
            raise Red(f"Prometheus does not answer {path} {query}: {answer.status} {answer.text[:200]}")
        return answer.json

    def ask(self, query: str) -> List[Sample]:
        """An instant query."""
        result = self.get("query", query=query)["data"]["result"]
        return [Sample(item["metric"], float(item["value"][1])) for item in result]

    def total(self, query: str) -> Optional[float]:
        """The value of a query with one result; None while there is no result."""
        found = self.ask(query)
        return found[0].value if found else None

    def alerts(self) -> Dict[str, List[Dict[str, str]]]:
        """The alerts that fire now, each with the labels of its instances."""
        found: Dict[str, List[Dict[str, str]]] = {}
        for alert in self.get("alerts")["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append({**alert["labels"], **alert["annotations"]})
        return found


def of_stack(ctx: Context) -> Prometheus:
    """The stack's own Prometheus, or one on this host that watches the same replicas."""
    url = ctx.stack.prometheus
    if url:
        return Prometheus(url)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(Path(__file__).resolve().parents[2] / "deploy/prometheus/rules/*.yml")],
        "scrape_configs": [scrape(ctx)],
    }
    return on_host(ctx, config)


def scrape(ctx: Context) -> Dict[str, Any]:
    """The scrape configuration for a stack of processes, with the same labels as on compose."""
    targets = [
        {"labels": {"job": f"muster-{service}"},
         "targets": [replica.admin.split("://")[1] for replica in ctx.stack.replicas(service) if replica.admin]}
        for service in OUR_SERVICES
    ]
    return {"job_name": "muster", "honor_labels": True, "static_configs": targets}


def on_host(ctx: Context, config: Dict[str, Any]) -> Prometheus:
    """Starts a Prometheus with this configuration on a free port of this host; it ends with the gate."""
    program = shutil.which("prometheus")
    if not program:
        raise Skip("this stack has no Prometheus, and the program prometheus is not installed here")
    folder = ctx.folder / "prometheus"
    folder.mkdir(exist_ok=True)
    # JSON is YAML.
    (folder / "prometheus.json").write_text(json.dumps(config, indent=1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [program, f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}", "--log.level=warn"], stdout=log, stderr=log)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()

    ctx.defer(stop)
    found = Prometheus(f"http://{address}")
    ctx.poll("Prometheus answers", 15, lambda: process.poll() is None and ready(found.url))
    return found


def ready(url: str) -> bool:
    """Whether it answers."""
    return request("GET", f"{url}/-/ready", timeout=3).status == 200
