"""Gate 23, upgrade: old → new → old, a replica at a time, under load, and no client notices.

Two image tags. MUSTER_UPGRADE_FROM names the old one, an earlier release. Without it the old one is this
build under another tag: then the gate proves the procedure and the orderly stops, and nothing about the
difference between two versions. The evidence says which it was.

The load goes to the gateways' own addresses: the engine's port proxy accepts connections for a process that
is gone, and would be measured instead. A request fails when it is cut off after it was sent, when its answer
is an error other than 503, or when no gateway can be reached at all.
"""

import os
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List

from .. import Context, Control, Gate
from ..histories import check
from ..jobs import unique
from ..load import UNREACHED, Load
from ..model import CONTAINERS, Red, Skip
from ..served import serve_from_containers
from ..stacks import engine

# The documented order.
ORDER = ("scheduler", "scheduler-2", "workflow", "workflow-2", "gateway", "gateway-2", "worker", "worker-2")
READY_S = 30.0
RATE, WORK_MS = 20.0, 150
END_S = 90.0


def run(ctx: Context) -> None:
    ctx.note("load average before", os.getloadavg()[0])
    new = ctx.stack.env.get("MUSTER_VERSION") if ctx.stack.ours else None
    if not new:
        raise Skip("this gate replaces images: it runs on a stack of its own only (--up)")
    old = old_images(ctx, new)
    topics = [unique("gate.upgrade.http"), unique("gate.upgrade.nats")]
    workers = serve_from_containers(ctx, topics[1])
    ctx.defer(lambda: (ctx.stack.up(), ctx.stack.wait_ready(60)))
    replace(ctx, [name for services in _steps(ctx) for name in services], old, workers)
    ctx.worker(topics[0], threads=8)
    load = Load(ctx, topics, RATE, WORK_MS, addresses=_direct(ctx)).start()
    load.reach(20, 30)
    took: Dict[str, float] = {}
    for what, version in (("old to new", new), ("new to old", old)):
        ctx.say(f"{what}: {version}")
        began = time.monotonic()
        for services in _steps(ctx):
            replace(ctx, services, version, workers)
            no_request_failed(ctx, f"{what}, {' and '.join(services)}", load)
        _all_run(ctx, version)
        took[what] = round(time.monotonic() - began, 1)
    load.reach(len(load.accepted) + 20, 30)
    load.stop()
    no_request_failed(ctx, "the whole upgrade", load)
    ctx.note("answers to submits", load.summary(load.answers))
    ctx.note("seconds for each direction, all replicas", took)
    check(ctx, "upgrade", load, END_S)


def _steps(ctx: Context) -> List[List[str]]:
    """The replicas of each step; in the documented procedure each step is one replica."""
    there = {each["Config"]["Labels"]["com.docker.compose.service"] for each in ctx.stack.inspected()}
    names = [name for name in ORDER if name in there]
    ctx.expect({"gateway-2", "scheduler-2", "workflow-2"} <= there, f"two of each are needed: {sorted(there)}")
    if ctx.planted.get("at once"):
        return [[name for name in names if name.startswith(kind)] for kind in ("scheduler", "workflow", "gateway", "worker")]
    return [[name] for name in names]


def old_images(ctx: Context, new: str) -> str:
    """The tag of the old version; a copy of the new one if no earlier release is named."""
    old = os.environ.get("MUSTER_UPGRADE_FROM")
    if old:
        ctx.note("old version", f"images with the tag {old}")
        return old
    old = f"{new}-before"
    for image in ("gateway", "scheduler", "workflow", "cli"):
        words = ["docker", "build", "--quiet", "--tag", f"muster/{image}:{old}", "-"]
        text = f'FROM muster/{image}:{new}\nLABEL muster.version="before {new}"\n'
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Red(f"no old image of {image}: {done.stderr.strip()[-300:]}")
    ctx.note("old version", "THE SAME BUILD under another tag and label: it shows the procedure, not two versions")
    return old


def replace(ctx: Context, services: List[str], version: str, workers: Dict[str, Any]) -> None:
    """Replaces these services' containers and waits until they are ready."""
    ctx.stack.up(overrides=[workers], env={"MUSTER_VERSION": version}, services=services)
    ctx.stack.wait_ready(READY_S)


def no_request_failed(ctx: Context, what: str, load: Load) -> None:
    """Accepted, refused by 503 with Retry-After, or never sent because the address was gone."""
    failed = [a for a in list(load.answers)
              if not (a.status in (200, 202) or (a.status == 503 and a.retry_after) or (a.status == 0 and a.code == UNREACHED))]
    ctx.expect(not failed, f"{what}: {len(failed)} of {len(load.answers)} requests failed: {Load.summary(failed)}")


def _all_run(ctx: Context, version: str) -> None:
    """Red unless the engine reports this version for each of our containers."""
    ours = [each["Config"]["Image"] for each in ctx.stack.inspected() if each["Config"]["Image"].startswith("muster/")]
    ctx.count(f"containers of {version}", sum(image.endswith(f":{version}") for image in ours), len(ours))


def _direct(ctx: Context) -> Callable[[], List[str]]:
    """The addresses of the running gateways, inside the project's network."""
    lock, known = threading.Lock(), {"at": 0.0, "urls": []}

    def ask() -> List[str]:
        with lock:
            if time.monotonic() > known["at"] + 0.3:
                found = [each for each in engine.containers(ctx.stack.project)
                         if each["Config"]["Labels"].get("com.docker.compose.service", "").startswith("gateway") and each["State"]["Running"]]
                known["urls"] = sorted(f"http://{net['IPAddress']}:8081" for each in found
                                       for net in each["NetworkSettings"]["Networks"].values() if net["IPAddress"])
                known["at"] = time.monotonic()
            return list(known["urls"])

    return ask


@contextmanager
def _at_once(ctx: Context) -> Iterator[None]:
    ctx.planted["at once"] = True
    yield
    ctx.planted.clear()


GATE = Gate(
    number=23,
    name="upgrade",
    passes_when="old → new → old, a replica at a time, under load: no failed request but repeated 503s",
    run=run,
    controls=[
        Control("both replicas at once", _at_once, r"gateway and gateway-2: \d+ of \d+ requests failed: .*no gateway reached", CONTAINERS,
                inside=True),
    ],
    needs=CONTAINERS,
    limit_s=600.0,
)
