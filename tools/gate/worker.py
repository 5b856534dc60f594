#!/usr/bin/env python3
"""A worker of the gate. It uses only the standard library and HTTP. Its execution log is the evidence.

Before it works on a job it appends one line `job attempt fence worker` to its log, in one write, so that a kill neither
loses nor repeats a line. If a gateway does not answer, it uses another one. It ends when its standard input closes, so
it never outlives the gate that started it.

Modes, for red controls:
  twice       runs each job two times
  acks-first  reports success first and works afterwards: a kill in between loses the work
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from itertools import count
from typing import Any, Dict

RETRY = (408, 425, 429, 500, 502, 503, 504)
leaving = threading.Event()


class Gateways:
    """Sends calls that may be repeated, to any gateway that answers."""

    def __init__(self, urls: str, key: str, tenant: str, first: int) -> None:
        self.urls = urls.split(",")
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Muster-Tenant": tenant}
        self.turn = first

    def call(self, verb: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """Posts until a gateway accepts the request. An empty answer means that the worker must leave."""
        data = json.dumps(body).encode()
        for attempt in count():
            url = self.urls[(self.turn + attempt) % len(self.urls)] + "/api/v1/worker/" + verb
            try:
                with urllib.request.urlopen(urllib.request.Request(url, data, self.headers), timeout=10) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refused:
                if refused.code not in RETRY:
                    print(f"{url}: {refused.code} {refused.read().decode(errors='replace')}", file=sys.stderr)
                    os._exit(1)
            except (OSError, ValueError):
                pass
            if leaving.wait(0.2) and verb == "lease":
                return {"items": [], "drain": True}
        return {}


class Log:
    """The execution log."""

    def __init__(self, path: str, worker: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.worker = worker

    def execution(self, job: Dict[str, Any]) -> None:
        """Appends one line, before the work."""
        os.write(self.file, f"{job['job_id']} {job['attempt']} {job['fence']} {self.worker}\n".encode())


def settle(gateways: Gateways, worker: str, job: Dict[str, Any]) -> None:
    """Reports success."""
    item = {"job_id": job["job_id"], "fence": job["fence"], "result": {"by": worker}}
    answer = gateways.call("complete", {"worker_id": worker, "items": [item]})
    for item in answer.get("items", []):
        if item["status"] != "ok":
            print(f"{job['job_id']}: complete: {item}", flush=True)


def keep(gateways: Gateways, worker: str, job: Dict[str, Any], lease_ms: int, done: threading.Event) -> None:
    """Extends the lease until the job is done."""
    item = {"job_id": job["job_id"], "fence": job["fence"]}
    while not done.wait(lease_ms / 3000):
        gateways.call("extend", {"worker_id": worker, "lease_ms": lease_ms, "items": [item]})


def work(options: argparse.Namespace, log: Log, job: Dict[str, Any]) -> None:
    """The work itself: a line in the log, then a wait."""
    payload = job.get("payload")
    asked = payload.get("work_ms") if isinstance(payload, dict) else None
    log.execution(job)
    time.sleep((options.work_ms if asked is None else asked) / 1000)


def run(options: argparse.Namespace, gateways: Gateways, log: Log, job: Dict[str, Any]) -> None:
    """Runs one job in the chosen mode."""
    done = threading.Event()
    threading.Thread(target=keep, args=(gateways, options.id, job, options.lease_ms, done), daemon=True).start()
    if options.mode == "acks-first":
        settle(gateways, options.id, job)
        time.sleep(options.late_ms / 1000)
        work(options, log, job)
    else:
        for _ in range(2 if options.mode == "twice" else 1):
            work(options, log, job)
        settle(gateways, options.id, job)
    done.set()


def take(options: argparse.Namespace, log: Log, first: int) -> None:
    """Runs one job after another until the worker leaves."""
    gateways = Gateways(options.url, options.key, options.tenant, first)
    while not leaving.is_set():
        ask = {"request_id": uuid.uuid4().hex, "worker_id": options.id, "topics": [options.topic], "max": 1}
        answer = gateways.call("lease", {**ask, "wait_ms": 2000, "lease_ms": options.lease_ms})
        for job in answer["items"]:
            run(options, gateways, log, job)
        if answer.get("drain"):
            return


def arguments() -> argparse.Namespace:
    """The command line. The key comes from the environment, so that `ps` does not show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="gateways, comma-separated")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--log", required=True, help="the file of executions")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--id", default=f"gate-{uuid.uuid4().hex[:8]}")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--work-ms", type=int, default=0)
    parser.add_argument("--late-ms", type=int, default=1000, help="acks-first: between the report and the work")
    parser.add_argument("--lease-ms", type=int, default=10_000)
    parser.add_argument("--mode", choices=("twice", "acks-first"))
    options = parser.parse_args()
    options.key = os.environ["MUSTER_API_KEY"]
    return options


def main() -> None:
    """Takes jobs until SIGTERM, a drain, or the end of standard input."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    log = Log(options.log, options.id)
    lanes = [threading.Thread(target=take, args=(options, log, n), daemon=True) for n in range(options.threads)]
    for lane in lanes:
        lane.start()

    def parent() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=parent, daemon=True).start()
    for lane in lanes:
        lane.join()


if __name__ == "__main__":
    main()
