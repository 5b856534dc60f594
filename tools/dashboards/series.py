"""Which series there are: Muster's own, from the catalogue in crates/telemetry; those of others.

It finds a name or label that no process reports, before a dashboard or an alert waits for it in vain.
"""

import re
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, List, NamedTuple

from .promql import Expression, Selector, read

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = ROOT / "crates/telemetry/src/metrics/catalogue.rs"
ROW = re.compile(r'^\s*\w+ = "(muster_\w+)" \[([^\]]*)\] (\w+) "', re.MULTILINE)
# Every target has them; `pod` is constant on every series of ours.
TARGET = frozenset({"job", "instance"})


class Series(NamedTuple):
    """One name, its labels, why it may be missing in a stack where all is well ("" if it may not), and
    the replicas that report it: Every, Gateway, Scheduler, Workflow, Snapshot as in the catalogue, "" for series of other programs."""

    name: str
    labels: FrozenSet[str]
    rare: str = ""
    teller: str = ""


FAULT = "appears with the first fault"
RUN = "only where workflows run"
# Series of ours that a healthy stack under load need not have. Counters without labels are 0 from the start, and so
# are those whose label values the services know (lost leases, stale writes, what was reconciled).
RARE = {
    "muster_dead_letters_total": FAULT,
    "muster_task_panics_total": FAULT,
    "muster_bus_publish_failures_total": FAULT,
    "muster_decisions_total": "only with MUSTER_DECIDE_TOPICS",
    "muster_runs_total": RUN,
    "muster_run_steps_total": RUN,
    "muster_run_duration_seconds": RUN,
    "muster_run_timer_lag_seconds": RUN,
}
KUBERNETES, PROBE = "only where kube-state-metrics runs", "only where blackbox_exporter probes certificates"
FOREIGN = [
    Series("up", TARGET),
    Series("redis_evicted_keys_total", TARGET),
    Series("redis_memory_used_bytes", TARGET),
    Series("redis_memory_max_bytes", TARGET),
    Series("redis_connected_clients", TARGET),
    Series("redis_commands_processed_total", TARGET),
    Series("redis_aof_current_size_bytes", TARGET),
    Series("redis_db_keys", TARGET | {"db"}),
    Series("redis_up", TARGET),
    Series("ALERTS", frozenset({"alertname", "alertstate", "severity"}), "appears with the first alert"),
    Series("kube_deployment_spec_replicas", TARGET | {"deployment", "namespace"}, KUBERNETES),
    Series("probe_ssl_earliest_cert_expiry", TARGET, PROBE),
]


def known(recordings: Dict[str, str]) -> Dict[str, Series]:
    """Every series by name: the catalogue's, the foreign ones, and what these recording rules make."""
    found = {each.name: each for each in FOREIGN}
    text = CATALOGUE.read_text()
    histograms = text[text.index("Histogram {") :]
    for name, labels, teller in ROW.findall(text):
        own = frozenset(re.findall(r'"(\w+)"', labels)) | TARGET | {"pod"}
        rare = RARE.get(name, "")
        if f'"{name}"' in histograms:
            found[name + "_bucket"] = Series(name + "_bucket", own | {"le"}, rare, teller)
            found[name + "_sum"] = Series(name + "_sum", own, rare, teller)
            found[name + "_count"] = Series(name + "_count", own, rare, teller)
        else:
            found[name] = Series(name, own, rare, teller)
    for name, text in recordings.items():
        expression = read(text)
        # What the outermost aggregation keeps is what the new series has.
        labels = frozenset(expression.groups[0] if expression.groups else ()) - {"le"}
        rare = all(found[s.metric].rare or chosen(s) for s in expression.selectors if s.metric in found)
        found[name] = Series(name, labels, "records series that may be missing" if rare else "")
    return found


def chosen(selector: Selector) -> bool:
    """The selector asks for one outcome or state, which need not have happened yet."""
    return any(label in ("outcome", "state") for label, _, _ in selector.matchers)


def faults(expression: Expression, series: Dict[str, Series]) -> List[str]:
    """What is wrong with the names and labels of an expression; empty if nothing is."""
    wrong = [f"unknown metric {s.metric}" for s in expression.selectors if s.metric not in series]
    labels = set(expression.made)
    for selector in expression.selectors:
        if selector.metric not in series:
            continue
        its = series[selector.metric].labels
        labels |= its
        wrong += [f"{selector.metric} has no label {label}" for label, _, _ in selector.matchers if label not in its]
    if not wrong:
        grouped = {label for group in expression.groups for label in group}
        wrong += [f"no metric here has the label {label}" for label in sorted(grouped - labels)]
    return sorted(set(wrong))


def own_names(series: Iterable[str]) -> List[str]:
    """The names of Muster's own metrics among these, recordings left out."""
    return sorted(name for name in series if name.startswith("muster_"))
