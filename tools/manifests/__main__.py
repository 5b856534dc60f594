"""The command line: `check` (default), `write`, `render NAME`, `faults`."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from . import checks, equivalence, faults, jobs, render, schema
from .findings import Finding
from .objects import Objects


def examine(objects: Objects) -> List[Finding]:
    """Everything that is wrong with these objects."""
    return [*schema.findings(objects), *checks.findings(objects)]


def lint() -> List[Finding]:
    """What `helm lint --strict` says."""
    done = subprocess.run([render.helm(), "lint", "--strict", str(render.CHART), *render.CHART_SECRETS],
                          capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("[ERROR]", "[WARNING]"))]
    if done.returncode and not lines:
        lines = [(done.stdout + done.stderr).strip()]
    return [Finding("helm-lint", "deploy/helm/muster", line) for line in lines]


def check(planted: List[str]) -> Dict[str, Any]:
    """Renders and checks everything, or with a fault planted only the variant that the fault is for."""
    began, found, counted = time.monotonic(), [], {}
    if planted:
        fault = faults.by_name(planted[0])
        objects = render.variant(fault.variant).render()
        fault.plant(objects)
        counted[fault.variant] = len(objects.all)
        found = [f"{fault.variant}: {finding}" for finding in examine(objects)]
        return _report(began, counted, found)
    rendered: Dict[str, Objects] = {}
    for variant in render.VARIANTS:
        try:
            rendered[variant.name] = objects = variant.render()
        except render.RenderError as error:
            found.append(f"{variant.name}: {error}")
            continue
        counted[variant.name] = len(objects.all)
        if not objects.all:
            found.append(f"{variant.name}: renders no object")
        found += [f"{variant.name}: {finding}" for finding in examine(objects)]
    for kustomize, chart in render.PAIRS:
        if kustomize in rendered and chart in rendered:
            found += [str(each) for each in equivalence.differences(kustomize, rendered[kustomize], chart, rendered[chart])]
    found += [str(each) for each in lint()]
    missed = _missed(rendered)
    found += [f"the checks do not find the planted fault: {name}" for name in missed]
    report = _report(began, counted, found)
    return {**report, "faults": len(faults.FAULTS), "faults_found": len(faults.FAULTS) - len(missed)}


def _missed(rendered: Dict[str, Objects]) -> List[str]:
    """Planted faults that no check finds; a check that cannot fail proves nothing."""
    missed = []
    for fault in faults.FAULTS:
        if fault.variant not in rendered:
            missed.append(fault.name)
            continue
        objects = rendered[fault.variant].copy()
        fault.plant(objects)
        if not fault.found(examine(objects)):
            missed.append(fault.name)
    return missed


def _report(began: float, counted: Dict[str, int], found: List[str]) -> Dict[str, Any]:
    return {"objects": counted, "checks": len(checks.CHECKS), "kubernetes": list(schema.VERSIONS),
            "findings": found, "seconds": round(time.monotonic() - began, 1)}


def write() -> int:
    """Gives Jobs the names of their content."""
    for variant in render.KUSTOMIZE:
        for line in jobs.write(variant.render(), render.ROOT / "deploy/k8s"):
            print(line)
    return 0


def main(arguments: List[str]) -> int:
    """The exit code: 0 nothing found, 1 something found, 2 misused."""
    parser = argparse.ArgumentParser(prog="manifests", description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "write", "render", "faults"])
    parser.add_argument("name", nargs="?", help="with render: which variant")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--plant", nargs=1, default=[], metavar="FAULT", help="plant this fault first, to see it found")
    options = parser.parse_args(arguments)
    if options.command == "write":
        return write()
    if options.command == "faults":
        for fault in faults.FAULTS:
            print(f"{fault.name}: {fault.expect}")
        return 0
    if options.command == "render":
        try:
            print(render.variant(options.name).text())
        except LookupError as unknown:
            parser.error(str(unknown))
        return 0
    try:
        report = check(options.plant)
    except (render.RenderError, faults.UnknownFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    for line in report["findings"]:
        print(f"error: {line}", file=sys.stderr)
    counted = ", ".join(f"{name} {count}" for name, count in report["objects"].items())
    planted = f"; {report['faults_found']} of {report['faults']} planted faults found" if "faults" in report else ""
    print(f"{len(report['findings'])} faults{planted}; objects: {counted}; {report['checks']} checks, "
          f"Kubernetes {' and '.join(report['kubernetes'])}, {report['seconds']} s")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
