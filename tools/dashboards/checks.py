"""Every check of what the project ships for Prometheus and Grafana. tools/scripts/metrics_check.sh runs it.

Each check returns its faults in words. A check that looked at nothing is a fault too.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import yaml  # type: ignore[import-untyped]

from . import contract, expressions, live, promql, series
from .__main__ import stale
from .lint import lint

ROOT = expressions.ROOT
PROMETHEUS = ROOT / "deploy/prometheus"
CASES = ("fires", "below", "resolves", "vanish")


def alerts() -> Dict[str, Dict[str, Any]]:
    """Every alert by its name."""
    groups = [group for file in expressions.rule_groups().values() for group in file["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def promtool(*args: str) -> List[str]:
    """Runs promtool; its words if it fails. It collects garbage less often: a fifth less time."""
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, check=False, cwd=PROMETHEUS,
                          env=dict(os.environ, GOGC="400"))
    return [] if done.returncode == 0 else [f"promtool {' '.join(args)}:\n{(done.stdout + done.stderr).strip()}"]


def configurations() -> List[str]:
    """promtool reads every configuration and every rule file."""
    rules = [str(path) for path in sorted((PROMETHEUS / "rules").glob("*.yml"))]
    wrong = promtool("check", "rules", *rules)
    wrong += promtool("check", "config", "--syntax-only", "prometheus.yml")
    # Debian's promtool is built without the discovery of Kubernetes. All else in the file is checked.
    found = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())
    for scrape in found["scrape_configs"]:
        for discovery in scrape.pop("kubernetes_sd_configs", []):
            if discovery.keys() - {"role", "namespaces", "selectors"} or discovery["role"] != "pod":
                wrong.append(f"kubernetes.yml: unknown discovery {discovery}")
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump(found, file)
        file.flush()
        return wrong + promtool("check", "config", "--syntax-only", file.name)


def unit_tests() -> List[str]:
    """promtool's unit tests of the rules, several files at a time."""
    files = [str(path) for path in sorted((PROMETHEUS / "tests").glob("*.yml"))]
    with ThreadPoolExecutor() as pool:
        return [fault for faults in pool.map(lambda file: promtool("test", "rules", file), files) for fault in faults]


def four_cases() -> List[str]:
    """Every alert has its four tests, each about that alert; in "vanish" some alert must fire."""
    tests = {}
    for path in sorted((PROMETHEUS / "tests").glob("*.yml")):
        for test in yaml.safe_load(path.read_text())["tests"]:
            if test["name"] in tests:
                return [f"two tests are called {test['name']!r}"]
            tests[test["name"]] = test
    wrong = []
    for alert in alerts():
        for case in CASES:
            test = tests.pop(f"{alert}: {case}", None)
            if test is None:
                wrong.append(f"{alert} has no test {case!r}")
                continue
            asked = test.get("promql_expr_test", [])
            seen = [each for each in asked if any(s["value"] > 0 for s in each["exp_samples"])]
            if case != "vanish" and not all(f'alertname="{alert}"' in each["expr"] for each in asked):
                wrong.append(f"the test {alert}: {case} asks for another alert")
            if case in ("fires", "resolves", "vanish") and not seen:
                wrong.append(f"in the test {alert}: {case} no alert fires")
            if case == "resolves" and (not asked or asked[-1]["exp_samples"]):
                wrong.append(f"the test {alert}: resolves does not end with the alert gone")
            if case == "below" and seen:
                wrong.append(f"in the test {alert}: below the alert fires")
    return wrong + [f"the test {name!r} is about no alert" for name in tests]


def annotations() -> List[str]:
    """Severity, summary, description, and a runbook link that leads to a heading."""
    wrong = []
    for name, rule in alerts().items():
        if rule.get("labels", {}).get("severity") not in ("critical", "warning"):
            wrong.append(f"{name}: severity must be critical or warning")
        said = rule.get("annotations", {})
        wrong += [f"{name}: no {key}" for key in ("summary", "description", "runbook_url") if not said.get(key)]
        page, _, anchor = said.get("runbook_url", "").partition("#")
        if anchor != name.lower():
            wrong.append(f"{name}: runbook_url should end with #{name.lower()}")
        elif anchor not in anchors(ROOT / page):
            wrong.append(f"{name}: {page} has no heading {anchor!r}")
    headings = {each for each in anchors(ROOT / "docs/operate/alerts.md") if each.startswith("muster")}
    return wrong + [f"docs/operate/alerts.md explains {each}, which is no alert"
                    for each in sorted(headings - {name.lower() for name in alerts()})]


def anchors(page: Path) -> List[str]:
    """The anchors of a page's headings, as code forges make them."""
    if not page.is_file():
        return []
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def loops_and_services() -> List[str]:
    """The recording rules name every leader loop and every service that has a target."""
    recordings = expressions.recordings(expressions.rules())
    page = (ROOT / "docs/reference/loops.md").read_text()
    leaders = set(re.findall(r"^\| ([\w ]+) \| leader \|", page, re.MULTILINE))
    named = set(re.findall(r'"loop", "([\w ]+)"', recordings["muster:loop_leaders:sum"]))
    wrong = [f"muster:loop_leaders:sum does not name the loop {each}" for each in sorted(leaders - named)]
    wrong += [f"muster:loop_leaders:sum names {each}, which is no leader loop" for each in sorted(named - leaders)]
    jobs = {group["labels"]["job"] for path in (PROMETHEUS / "targets").glob("*.yml")
            for group in yaml.safe_load(path.read_text())}
    services = {job for job in jobs if job.startswith("muster-")}
    for record in ("muster:replicas_up:sum", "muster:replicas_wanted:max"):
        floor = set(re.findall(r'"job", "(muster-[\w-]+)"', recordings[record]))
        wrong += [f"{record} and deploy/prometheus/targets differ in {each}" for each in sorted(services ^ floor)]
    return wrong if leaders and services else ["no leader loop or no service was found"]


def promises() -> List[str]:
    """The catalogue has every metric that the contract promises, with its labels and tellers."""
    return contract.broken(series.known({}))


def selectors() -> List[str]:
    """Every metric and label in the rules and in KEDA's queries is one of the catalogue, or a foreign one that is listed."""
    rules = expressions.rules()
    known = series.known(expressions.recordings(rules))
    return [f"{rule.place}: {rule.name}: {fault}" for rule in rules + expressions.scalers()
            for fault in series.faults(promql.read(rule.text), known)]


def scalers() -> List[str]:
    """KEDA's examples scale Deployments of deploy/k8s, by queries that the other checks read too."""
    deployments = {found["metadata"]["name"]: path for path in (ROOT / "deploy/k8s").rglob("*.yaml")
                   for found in yaml.safe_load_all(path.read_text()) if found and found.get("kind") == "Deployment"}
    wrong, queries = [], []
    for path in sorted(expressions.KEDA.glob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            target = found["spec"]["scaleTargetRef"]["name"]
            if target not in deployments:
                wrong.append(f"{path.name}: deploy/k8s has no Deployment {target}: it has {', '.join(sorted(deployments))}")
            queries += [trigger["metadata"]["query"] for trigger in found["spec"]["triggers"]]
    if not queries or sorted(queries) != sorted(each.text for each in expressions.scalers()):
        wrong.append("the queries of deploy/keda are not read: write each on one line")
    return wrong


def dashboards() -> List[str]:
    """The committed dashboards are what the code says, and pass the linter."""
    wrong = [f"{name} is not what tools/dashboards says: make dashboards" for name in stale()]
    found = expressions.boards()
    return wrong + (lint(found, series.known(expressions.recordings(expressions.rules()))) or
                    ([] if len(found) >= 4 else ["fewer than four dashboards"]))


def own_tests() -> List[str]:
    """The unit tests of the checks themselves."""
    suite = unittest.defaultTestLoader.discover(str(ROOT / "tools/dashboards/tests"), top_level_dir=str(ROOT / "tools"))
    result = unittest.TextTestRunner(stream=open("/dev/null", "w"), verbosity=0).run(suite)
    faults = [f"{test}: {text.strip().splitlines()[-1]}" for test, text in result.failures + result.errors]
    return faults if result.testsRun else ["no test was found"]


CHECKS: List[Tuple[str, Callable[[], List[str]]]] = [
    ("configurations and rules are read by promtool", configurations),
    ("four unit tests for each alert", four_cases),
    ("annotations and runbook links", annotations),
    ("loops and services that must be there", loops_and_services),
    ("the catalogue has every metric of the contract", promises),
    ("metrics and labels of rules and of KEDA's queries are in the catalogue", selectors),
    ("KEDA's examples name what there is", scalers),
    ("dashboards are up to date and well made", dashboards),
    ("tests of the checks", own_tests),
    ("unit tests of the rules pass", unit_tests),
]


def ask_live(url: str) -> List[str]:
    """Every query of rules, dashboards and KEDA's examples, asked of a running Prometheus."""
    rules = expressions.rules()
    found = live.check(url, rules + expressions.panels() + expressions.any_topic(expressions.scalers()), series.known(expressions.recordings(rules)))
    for selector, reason in sorted(found.empty.items()):
        print(f"      empty, and may be: {selector} ({reason})")
    print(f"      {found.asked} selectors asked of {url}")
    return found.wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="metrics_check.sh", description=__doc__)
    parser.add_argument("--live", metavar="URL", help="also ask this Prometheus every query")
    args = parser.parse_args()
    checks = list(CHECKS)
    if args.live:
        checks.append(("a live Prometheus answers every query", lambda: ask_live(args.live.rstrip("/"))))
    red = False
    for name, check in checks:
        began = time.monotonic()
        faults = check()
        red = red or bool(faults)
        print(f"{'FAIL' if faults else 'ok':4}  {name} ({time.monotonic() - began:.1f} s)")
        for fault in faults:
            print(f"      {fault}")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
