"""The metrics that the contract promises to users, by name, with their labels and the replicas that report them.

The list is a copy and is not read from crates/telemetry, so that a renamed series is found: dashboards and alerts of
users query these names. A change here changes a promise.
"""

from typing import Dict, List, NamedTuple, Tuple

from .series import Series


class Promise(NamedTuple):
    """What the contract says about a metric. A `histogram` has the series `_bucket`, `_sum` and `_count`."""

    labels: Tuple[str, ...] = ()
    histogram: bool = False
    # Only the leader of the loop `snapshot` reports it, so that a sum over all replicas is right.
    once: bool = False


PROMISED: Dict[str, Promise] = {
    "muster_jobs_total": Promise(("topic", "state")),
    "muster_job_attempts_total": Promise(("topic", "outcome")),
    "muster_rate_limit_hits_total": Promise(),
    "muster_dispatch_latency_seconds": Promise(histogram=True),
    "muster_job_wait_seconds": Promise(("topic",), histogram=True),
    "muster_job_duration_seconds": Promise(("topic",), histogram=True),
    "muster_lease_lost_total": Promise(("lock",)),
    "muster_stale_writes_total": Promise(("event",)),
    "muster_replayed_total": Promise(),
    "muster_reconciled_total": Promise(("action",)),
    "muster_loop_ticks_total": Promise(("loop", "outcome")),
    "muster_leader": Promise(("loop",)),
    "muster_http_request_duration_seconds": Promise(("route", "status"), histogram=True),
    "muster_bus_consumer_pending": Promise(("consumer",)),
    "muster_redis_command_seconds": Promise(histogram=True),
    "muster_redis_connections": Promise(("state",)),
    "muster_build_info": Promise(),
    "muster_jobs_current": Promise(("topic", "state"), once=True),
    "muster_queue_depth": Promise(("topic",), once=True),
    "muster_queue_runnable": Promise(("topic",), once=True),
    "muster_queue_oldest_age_seconds": Promise(("topic",), once=True),
    "muster_oldest_running_age_seconds": Promise(("topic",), once=True),
    "muster_overdue_jobs": Promise(once=True),
    "muster_workers": Promise(("topic",), once=True),
    "muster_consistency_gap": Promise(once=True),
}


def names() -> List[str]:
    """Every series that is promised, as a scrape shows it."""
    return [name + suffix for name, promise in PROMISED.items()
            for suffix in (("_bucket", "_sum", "_count") if promise.histogram else ("",))]


def broken(known: Dict[str, Series]) -> List[str]:
    """The promises that these series do not keep."""
    wrong = []
    for name, promise in PROMISED.items():
        found = known.get(f"{name}_bucket" if promise.histogram else name)
        if found is None:
            wrong.append(f"the contract promises {name}{', a histogram' if promise.histogram else ''}, and no process reports it")
            continue
        wrong += [f"the contract promises {name} with the label {label}, which it does not have"
                  for label in promise.labels if label not in found.labels]
        if promise.once != (found.teller == "Snapshot"):
            wrong.append(f"{name} is reported by {found.teller}; the contract says {'one replica only' if promise.once else 'each replica its own part'}")
        if found.rare:
            wrong.append(f"{name} is in the contract, so no check may skip it as rare")
    return wrong
