"""Gate 27, manifests: the Kubernetes objects of Kustomize and of the chart are valid, fit each other, and
are the same in both forms.

No cluster is needed. tools/manifests renders and checks, in the tool environment; its table of faults
gives the red controls, so a fault is written once.
"""

import json
import subprocess
from contextlib import contextmanager
from typing import Iterator

from manifests import faults

from .. import Context, Control, Gate
from ..model import NOTHING
from ..plants import Plant
from ..stacks.base import ROOT

PLANTED = "fault"


def run(ctx: Context) -> None:
    tools = subprocess.run([str(ROOT / "tools/scripts/python_tools.sh")], capture_output=True, text=True, check=False)
    ctx.expect(tools.returncode == 0, f"the tools could not be installed: {tools.stderr.strip()}")
    report_file = ctx.folder / "manifests.json"
    command = [f"{tools.stdout.strip()}/python", "-m", "manifests", "check", "--json", str(report_file)]
    if PLANTED in ctx.planted:
        command += ["--plant", ctx.planted[PLANTED]]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    ctx.expect(report_file.exists(), f"the check did not end: {done.stderr.strip()}")
    report = json.loads(report_file.read_text())
    ctx.note("objects", report["objects"])
    ctx.note("checks", report["checks"])
    ctx.note("kubernetes", report["kubernetes"])
    ctx.expect(report["objects"] and all(report["objects"].values()), f"a variant has no objects: {report['objects']}")
    ctx.expect(not report["findings"], "; ".join(report["findings"]))
    if PLANTED not in ctx.planted:
        ctx.count("planted faults found", report["faults_found"], report["faults"])


def planted(name: str) -> Plant:
    """The rendered objects carry this fault."""

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        ctx.planted[PLANTED] = name
        yield
        ctx.planted.pop(PLANTED)

    return plant


GATE = Gate(
    number=27,
    name="manifests",
    passes_when="the Kubernetes objects of Kustomize and Helm are valid for two versions, fit each other and are the same",
    run=run,
    controls=[Control(fault.name, planted(fault.name), fault.expect, needs=NOTHING) for fault in faults.REFUSED],
    needs=NOTHING,
    limit_s=180.0,
)
