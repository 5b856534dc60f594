"""Gate 20, metrics: every replica reports every series of the contract under its own name, and the sums are right.

The gate compares a real Prometheus with its own counts: answers of the API, and the workers' own log. Afterwards it
runs every query of rules and dashboards once.
"""

import time
import urllib.request
from typing import Any, Dict, List, Set

from dashboards import contract, expressions, live, series

from .. import Context, Control, Gate
from ..jobs import ended, executed_once, submit, succeeded, unique
from ..model import CONTAINERS
from ..plants import override
from ..prometheus import Prometheus, of_stack
from ..stacks.base import OUR_SERVICES, ROOT
from ..targets import every_replica_by_name

WAITING, JOBS, CANCELLED = 15, 60, 6
# Long enough that each gateway can cancel one that runs.
RUNNING_MS = 4000
# A scrape every 5 s, a snapshot every 5 s, and some patience for a busy machine.
PATIENCE_S = 30.0
# Series that a replica reports only after it has done the work. The load gives work to every scheduler. The gateway that
# cancels a job writes its end, and this gate cancels at each gateway. The load has no runs, so the workflow service ends
# no job.
SERVICES = {"Every": OUR_SERVICES, "Gateway": ("gateway",), "Scheduler": ("scheduler",), "Workflow": ("workflow",)}
ENDS_OF_JOBS = ("muster_jobs_total", "muster_job_duration_seconds")


def run(ctx: Context) -> None:
    prometheus = of_stack(ctx)
    names = every_replica_by_name(ctx, prometheus, PATIENCE_S)
    topic = unique("gate.metrics")
    queue_is_counted(ctx, prometheus, topic)
    load(ctx, prometheus, topic)
    every_series_from_every_replica(ctx, prometheus, names)
    every_query_answers(ctx, prometheus)


def queue_is_counted(ctx: Context, prometheus: Prometheus, topic: str) -> None:
    """Jobs without a worker: depth and runnable are what the gate submitted; a worker empties them."""
    ids = submit(ctx, topic, WAITING)
    for metric in ("muster_queue_depth", "muster_queue_runnable"):
        equals(ctx, prometheus, f'sum({metric}{{topic="{topic}"}})', WAITING)
    ctx.worker(topic, threads=4)
    succeeded(ctx, "jobs that waited", ended(ctx, ids, 30))
    equals(ctx, prometheus, f'sum(muster_workers{{topic="{topic}"}})', 1)
    equals(ctx, prometheus, f'sum(muster_queue_depth{{topic="{topic}"}})', 0)
    executed_once(ctx, "jobs that waited", topic, ids)


def load(ctx: Context, prometheus: Prometheus, topic: str) -> None:
    """Jobs over all gateways, some cancelled at each: the counters equal what the gate counted."""
    jobs = submit(ctx, topic, JOBS)
    # Delayed, so that the reconciler wakes one and the others can be cancelled while they wait.
    woken = submit(ctx, topic, 1, delay_ms=1500)
    cancel(ctx, submit(ctx, topic, CANCELLED, delay_ms=600_000))
    succeeded(ctx, "jobs of the load", ended(ctx, jobs + woken, 40))
    running = submit(ctx, topic, len(ctx.stack.gateways()), {"work_ms": RUNNING_MS})
    ctx.poll("the long jobs run", 10, lambda: set(running) <= {each.job for each in ctx.executions(topic)})
    cancel(ctx, running)
    watch_events(ctx)
    executions = len(ctx.executions(topic))
    good = WAITING + JOBS + len(woken)
    ctx.count("executions in the worker's log", executions, good + len(running))
    mine = f'topic="{topic}"'
    equals(ctx, prometheus, f'sum(muster_jobs_total{{{mine},state="succeeded"}})', good)
    equals(ctx, prometheus, f'sum(muster_jobs_total{{{mine},state="cancelled"}})', CANCELLED + len(running))
    equals(ctx, prometheus, f'sum(muster_job_attempts_total{{{mine},outcome="succeeded"}})', good)
    equals(ctx, prometheus, f"sum(muster_job_wait_seconds_count{{{mine}}})", executions)
    equals(ctx, prometheus, f"sum(muster_jobs_current{{{mine}}})", 0)
    equals(ctx, prometheus, "max(muster_consistency_gap)", 0)
    equals(ctx, prometheus, "max(muster_overdue_jobs)", 0)


def cancel(ctx: Context, ids: List[str]) -> None:
    """Cancels the jobs, by turns over all gateways."""
    for turn, job in enumerate(ids):
        answer = ctx.stack.api("POST", f"/jobs/{job}/cancel", {}, gateway=turn % len(ctx.stack.gateways()))
        ctx.expect(answer.status in (200, 202), f"cancel: {answer.status} {answer.text[:200]}")


def watch_events(ctx: Context) -> None:
    """A client watches events on each gateway for a moment: the gauge of watchers appears with the first."""
    for url in ctx.stack.gateways():
        ask = urllib.request.Request(f"{url}/api/v1/events", headers={"Authorization": f"Bearer {ctx.stack.api_key}"})
        with urllib.request.urlopen(ask, timeout=5) as stream:
            ctx.expect(stream.status == 200, f"{url}/api/v1/events: {stream.status}")


def equals(ctx: Context, prometheus: Prometheus, query: str, wanted: int) -> None:
    """Red unless Prometheus reaches exactly this number in time."""

    def same() -> bool:
        found = prometheus.total(query)
        ctx.expect(found is not None, f"Prometheus has no series for {query}")
        ctx.expect(found == wanted, f"Prometheus says {found:g} to {query}, the gate counted {wanted}")
        return True

    ctx.poll(query, PATIENCE_S, same, every=0.5)
    ctx.note(f"{query} is {wanted}", "as counted by the gate")


def every_series_from_every_replica(ctx: Context, prometheus: Prometheus, names: Dict[str, Set[str]]) -> None:
    """Every series of the catalogue that a healthy stack has, from every replica that should report it."""
    known = [each for each in series.known({}).values() if each.teller and not each.rare]

    def missing() -> List[str]:
        found: Dict[str, Set[str]] = {}
        query = "count by (__name__, pod) ({__name__=~\"muster_.+\"})"
        for sample in prometheus.ask(query):
            found.setdefault(sample.labels["__name__"], set()).add(sample.labels.get("pod", "no pod"))
        # By their names in the contract, not by those in the source.
        out = [f"no replica reports {name}, which the contract promises" for name in contract.names() if name not in found]
        for each in known:
            reported = found.get(each.name, set())
            if each.teller == "Snapshot":
                out += [] if reported else [f"no replica reports {each.name}"]
                continue
            wanted = set().union(*(names[service] for service in SERVICES[each.teller]))
            if each.name.startswith(ENDS_OF_JOBS):
                wanted -= names["workflow"]
            lacking = sorted(wanted - reported)
            out += [f"{', '.join(lacking)} does not report {each.name}"] if lacking else []
        strangers = sorted({pod for pods in found.values() for pod in pods} - set().union(*names.values()))
        return out + [f"series from an unknown pod {pod}" for pod in strangers]

    def complete() -> bool:
        faults = missing()
        ctx.expect(not faults, "; ".join(faults))
        return True

    ctx.poll("every series from every replica", PATIENCE_S, complete, every=1.0)
    ctx.note("series that every replica reports that should", len(known))
    ctx.note("series that the contract promises by name", len(contract.names()))


def every_query_answers(ctx: Context, prometheus: Prometheus) -> None:
    """The rules that this Prometheus has loaded, the panels of the dashboards, and the example for KEDA."""
    sources = expressions.from_api(prometheus.get("rules"))
    alerts = [each.name for each in sources if each.kind == "alert"]
    ctx.expect(len(alerts) >= 20, f"Prometheus has loaded {len(alerts)} alerts")
    known = series.known(expressions.recordings(sources))
    if not ctx.stack.containers:
        # A stack of processes has no redis_exporter.
        known.update({name: each._replace(rare="no exporter") for name, each in known.items() if name.startswith("redis_")})
    ends = time.monotonic() + PATIENCE_S
    while True:
        found = live.check(prometheus.url, sources + expressions.panels() + expressions.any_topic(expressions.scalers()), known)
        if not found.wrong or time.monotonic() > ends:
            break
        time.sleep(2)
    ctx.expect(not found.wrong, "; ".join(found.wrong[:5]))
    ctx.note("alerts that Prometheus has loaded", len(alerts))
    ctx.note("selectors of rules and dashboards that were asked", found.asked)
    ctx.note("selectors without a series, and why that is right", found.empty)


def planted(name: str) -> str:
    """The path of a file with a fault."""
    return str(ROOT / "tools/gate/planted" / name)


def mount(source: str, target: str) -> Any:
    """Prometheus with this file in place of its own."""
    return override({"prometheus": {"volumes": [f"{planted(source)}:{target}:ro"]}})


GATE = Gate(
    20,
    "metrics",
    "every contract series from every pod; sums equal the gate's own counts; every selector of rules and dashboards answers",
    run,
    controls=[
        Control("a target dropped", mount("targets_dropped.yml", "/targets/ha.yml"), r"scheduler-2:9090 is not a target", CONTAINERS),
        Control("a metric renamed", mount("metric_renamed.yml", "/etc/prometheus/prometheus.yml"), r"muster_queue_depth", CONTAINERS),
        Control("two replicas with one pod", override({"gateway-2": {"environment": {"MUSTER_INSTANCE_ID": "gateway-1"}}}),
                r"gateway-2:9092 and gateway:9092 have one pod, gateway-1", CONTAINERS, also=(2, 19)),
    ],
    limit_s=240.0,
    beside=True,
)
