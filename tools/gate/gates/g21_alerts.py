"""Gate 21, alerts: each alert fires for its real fault, seen by a real Prometheus, and resolves after it.

The stack's own Prometheus gets the drill's copy of the rules (../drill_rules.py says how it differs) and
scrapes every second. Every alert of deploy/prometheus/rules must have a drill (../drills.py).
"""

import re
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, List, Optional, Set

from .. import Context, Control, Gate, drill_rules
from ..drills import BATCHES, CLUSTER, Drill, batches
from ..model import CONTAINERS, Red
from ..plants import Plant
from ..prometheus import Prometheus, ready
from ..stacks.base import ROOT
from ..targets import moment

FIRES_S = 110.0  # Some gauges are measured once a minute.
RESOLVES_S = 120.0
# Certificates are probed as docs/operate/metrics.md says; the drill writes the target.
PROBES = """
  - job_name: tls
    metrics_path: /probe
    params: {module: [tcp_tls]}
    file_sd_configs:
      - files: [/drill/tls/*.json]
        refresh_interval: 1s
"""


def run(ctx: Context) -> None:
    wanted = drill_rules.names()
    drilled = {alert for batch in BATCHES + CLUSTER for drill in batch for alert in drill.alerts}
    ctx.expect(set(wanted) == drilled, f"alerts without a drill: {sorted(set(wanted) - drilled)}; drills without an alert: {sorted(drilled - set(wanted))}")
    prometheus = with_drill_rules(ctx)
    loaded = {rule["name"] for group in prometheus.get("rules")["data"]["groups"] for rule in group["rules"]}
    ctx.expect(not set(wanted) - loaded, f"the rule {', '.join(sorted(set(wanted) - loaded))} is not loaded in Prometheus")
    played = batches(ctx)
    here = {alert for batch in played for drill in batch for alert in drill.alerts}
    ctx.note("alerts that need three NATS nodes, which gate 28 drills", sorted(drilled - here))
    play_all(ctx, prometheus, played)


def play_all(ctx: Context, prometheus: Prometheus, played: List[List[Drill]]) -> None:
    """Runs these batches; red unless each of their alerts fired for its fault and resolved after it."""
    fired: Dict[str, float] = {}
    resolved: Dict[str, float] = {}
    for batch in played:
        play(ctx, prometheus, batch, fired, resolved)
    here = {alert for batch in played for drill in batch for alert in drill.alerts}
    ctx.note("seconds from fault to alert", fired)
    ctx.note("seconds from mending to resolved", resolved)
    ctx.count("alerts that fired for their real fault", len(fired), len(here))
    ctx.count("alerts that resolved", len(resolved), len(here))


def play(ctx: Context, prometheus: Prometheus, batch: List[Drill], fired: Dict[str, float], resolved: Dict[str, float]) -> None:
    """Plants the faults of a batch, waits for their alerts, removes the faults, and waits until the alerts resolve."""
    expected = {alert for drill in batch for alert in drill.alerts}
    standing = {alert for drill in batch if drill.standing for alert in drill.alerts}
    quiet(ctx, prometheus, expected - standing, f"before the drill {batch[0].name!r}")
    # Some faults take a while to plant, and the alert of the first may be over before the last is there.
    watch = Watch(ctx, prometheus, expected)
    with ExitStack() as faults:
        faults.callback(watch.close)
        for drill in batch:
            ctx.say(f"fault: {drill.name}")
            for alert in drill.alerts:
                watch.began[alert] = time.monotonic()
            faults.enter_context(drill.fault(ctx))

        def all_fire() -> bool:
            missing = sorted(expected - set(watch.seen))
            ctx.expect(not missing, f"{', '.join(missing)} did not fire for {', '.join(d.name for d in batch if set(missing) & set(d.alerts))}")
            return True

        ctx.poll("the alerts of this drill", FIRES_S, all_fire)
        for alert, said in watch.said.items():
            well_said(ctx, alert, said)
        fired.update(watch.seen)
    quiet(ctx, prometheus, expected, f"after the drill {batch[0].name!r}", resolved, time.monotonic())


class Watch(threading.Thread):
    """Notes when each expected alert fires first, in seconds since its fault, and what it says."""

    def __init__(self, ctx: Context, prometheus: Prometheus, expected: Set[str]) -> None:
        super().__init__(daemon=True)
        self.ctx, self.prometheus, self.expected = ctx, prometheus, expected
        self.began: Dict[str, float] = {}
        self.seen: Dict[str, float] = {}
        self.said: Dict[str, Dict[str, str]] = {}
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.5):
            try:
                alerts = self.prometheus.alerts()
            except (OSError, Red):
                continue  # the poll of the drill says it when this lasts
            for alert in self.expected & set(alerts) & set(self.began) - set(self.seen):
                self.seen[alert] = round(time.monotonic() - self.began[alert], 1)
                self.said[alert] = alerts[alert][0]
                self.ctx.say(f"{alert} fires after {self.seen[alert]:.0f} s: {self.said[alert].get('summary')}")

    def close(self) -> None:
        """Stops watching."""
        self._ended.set()


def quiet(ctx: Context, prometheus: Prometheus, alerts: Set[str], when: str,
          resolved: Optional[Dict[str, float]] = None, since: float = 0.0) -> None:
    """Waits until none of these alerts has fired for three seconds; notes when each was gone."""
    gone = {} if resolved is None else resolved
    last_fire = time.monotonic()

    def none() -> bool:
        nonlocal last_fire
        firing = set(prometheus.alerts())
        if alerts & firing:
            last_fire = time.monotonic()
        for alert in alerts:
            if alert in firing:
                gone.pop(alert, None)
            else:
                gone.setdefault(alert, round(time.monotonic() - since, 1))
        ctx.expect(not alerts & firing, f"{', '.join(sorted(alerts & firing))} still fires {when}")
        return time.monotonic() - last_fire > 3

    ctx.poll(f"quiet {when}", RESOLVES_S, none, every=0.5)


def well_said(ctx: Context, alert: str, said: Dict[str, str]) -> None:
    """Red unless the annotations of a real alert have no failed template, and a runbook."""
    for name in ("summary", "description", "runbook_url"):
        ctx.expect(said.get(name) and "<error" not in said[name] and "<no value>" not in said[name],
                   f"{alert}: its {name} reads {said.get(name)!r}")


def with_drill_rules(ctx: Context) -> Prometheus:
    """The stack's Prometheus with the drill's rules and a scrape every second, until the gate ends."""
    folder = ctx.folder / "drill"
    drill_rules.write(folder / "rules", ctx.planted.get("without"), ctx.planted.get("deaf"))
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    text = re.sub(r"(scrape_interval|scrape_timeout|evaluation_interval): \d+s", r"\1: 1s", text)
    (folder / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules", "/drill/rules") + PROBES)
    (folder / "tls").mkdir()
    for each in (folder, folder / "tls"):
        each.chmod(0o755)
    changed = {"command": ["--config.file=/drill/prometheus.yml", "--storage.tsdb.path=/prometheus"],
               "volumes": [f"{folder}:/drill:ro"]}
    ctx.defer(lambda: ctx.stack.up(services=["prometheus"]))
    began = time.time()
    ctx.stack.up(overrides=[{"services": {"prometheus": changed}}], services=["prometheus"])
    url = ctx.stack.prometheus
    ctx.poll("Prometheus has the drill's rules", 40, lambda: ready(url) and "drill" in str(Prometheus(url).get("rules")))
    # A Prometheus that has just started knows the series of the one before it. Until it has scraped a target once, it
    # does not notice that the target's series are gone.
    ctx.poll("Prometheus has scraped every target since its start", 40, lambda: scraped(Prometheus(url), began))
    return Prometheus(url)


def scraped(prometheus: Prometheus, since: float) -> bool:
    """Every target has answered since then."""
    targets = prometheus.get("targets", state="active")["data"]["activeTargets"]
    return bool(targets) and all(each["health"] == "up" and moment(each["lastScrape"]) > since for each in targets)


@contextmanager
def rule_removed(ctx: Context) -> Iterator[None]:
    """The rules lack one alert."""
    ctx.planted["without"] = "MusterOverdueJobs"
    yield


def deaf(alert: str) -> Plant:
    """The alert is loaded and does not fire."""

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        ctx.planted["deaf"] = alert
        yield

    return plant


GATE = Gate(
    21,
    "alerts",
    "each alert fires for its real fault and resolves; a real Prometheus sees it",
    run,
    controls=[
        Control("a rule removed", rule_removed, r"MusterOverdueJobs is not loaded", CONTAINERS, inside=True),
        Control("an alert that is loaded and does not fire", deaf("MusterKeyExpiring"),
                r"MusterKeyExpiring did not fire for a key that expires tomorrow", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    limit_s=1080.0,
)
