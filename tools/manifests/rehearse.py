"""A rehearsal of overlays/ha on a container engine: the rendered objects run as pods would, jobs run
through them, all Redis nodes come back with new addresses, and the services stop in time.

It shows what schemas cannot: that the commands start, the files are where they are looked for, the
passwords fit, the create Job ends, and the healer heals. `make manifests-rehearse` runs it.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, List

from . import render
from .checks.scaling import replicas
from .objects import Objects, name
from .pods import EngineError, Node, Pod

JOBS = 20
# Long: on a busy machine sixteen pods take their time.
PATIENCE_S = 240.0


class Failed(Exception):
    """What did not work."""


class Rehearsal:
    """One run over all pods but those of the workloads in `without`."""

    def __init__(self, objects: Objects, node: Node, without: List[str]) -> None:
        self.node = node
        self.pods: List[Pod] = []
        for workload in objects.workloads():
            if name(workload.obj) in without:
                continue
            count = 1 if workload.kind == "Job" else replicas(objects, workload)
            self.pods += [Pod(f"{name(workload.obj)}-{number}", workload) for number in range(count)]
        self.began = time.monotonic()

    def run(self) -> None:
        """All steps; Failed when one does not work."""
        for pod in self.pods:
            self.node.start(pod)
        self.say(f"{len(self.pods)} pods started, stores and services at once")
        self.wait_complete()
        self.wait_ready()
        first = self.jobs_run("before")
        self.new_addresses()
        self.wait_ready()
        missing = [job for job in first if self.call("GET", f"/api/v1/jobs/{job}")["state"] != "succeeded"]
        if missing:
            raise Failed(f"{len(missing)} of {len(first)} jobs are no longer there")
        self.jobs_run("after")
        self.services_stop()

    # -- steps

    def wait_complete(self) -> None:
        job = next(pod for pod in self.pods if pod.workload.kind == "Job")
        self.poll("the create Job ends", PATIENCE_S, lambda: self.node.exit_code(job) is not None, [job])
        if self.node.exit_code(job) != 0:
            raise Failed(f"the create Job failed: {self.node.logs(job)}")
        self.say("the create Job is complete")

    def wait_ready(self) -> None:
        pods = [pod for pod in self.pods if pod.workload.kind != "Job"]
        self.poll("all pods are ready", PATIENCE_S, lambda: all(self.node.ready(pod) for pod in pods), pods)
        self.say(f"{len(pods)} pods are ready")

    def new_addresses(self) -> None:
        """All six at once, none at an address that one of them had: those would find each other again."""
        nodes = self.of("redis")
        before = {self.node.address(pod) for pod in nodes}
        self.node.remove(nodes)
        self.node.occupy(len(nodes), nodes[0])
        for pod in nodes:
            self.node.start(pod)
        again = before & {self.node.address(pod) for pod in nodes}
        if again:
            raise Failed(f"Redis nodes have old addresses, so nothing would be shown: {sorted(again)}")
        self.say(f"{len(nodes)} Redis nodes started at new addresses")

    def services_stop(self) -> None:
        for pod in self.of("gateway") + self.of("workflow") + self.of("scheduler"):
            began = time.monotonic()
            code = self.node.signal(pod)
            took = time.monotonic() - began
            if code or took > 15.5:
                raise Failed(f"{pod.name} ended with {code} after {took:.1f} s")
            self.say(f"{pod.name} stopped by itself in {took:.1f} s")

    def jobs_run(self, label: str) -> List[str]:
        """Jobs over all gateways; all of them succeed."""
        made = [self.call("POST", "/api/v1/jobs", {"topic": "demo", "payload": {"n": number, "label": label}}, number)["id"]
                for number in range(JOBS)]

        def ended() -> bool:
            return all(self.call("GET", f"/api/v1/jobs/{job}")["state"] == "succeeded" for job in made)

        self.poll(f"{JOBS} jobs succeed", 60, ended, self.of("gateway") + self.of("scheduler") + self.of("demo-worker"))
        self.say(f"{JOBS} of {JOBS} jobs succeeded")
        return made

    # -- means

    def of(self, component: str) -> List[Pod]:
        return [pod for pod in self.pods if name(pod.workload.obj) == component]

    def call(self, method: str, path: str, body: Any = None, gateway: int = 0) -> Dict[str, Any]:
        """A call to a gateway, again and again while it answers 503."""
        pods = self.of("gateway")
        pod = pods[gateway % len(pods)]
        key = self.node.environment(pod, pod.workload.containers[0])["MUSTER_API_KEY"]
        port = dict(pod.workload.ports())["http"]
        asked = urllib.request.Request(
            f"http://{self.node.address(pod)}:{port}{path}", method=method, data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        ends = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    return dict(json.load(answer))
            except urllib.error.HTTPError as refused:
                if refused.code != 503 or time.monotonic() > ends:
                    raise Failed(f"{method} {path}: {refused.code} {refused.read().decode()}") from refused
                time.sleep(0.5)

    def poll(self, what: str, timeout: float, ask: Callable[[], bool], about: List[Pod]) -> None:
        ends = time.monotonic() + timeout
        while not ask():
            if time.monotonic() > ends:
                late = [f"{pod.name}: {self.node.logs(pod)}" for pod in about if not self.node.ready(pod)]
                raise Failed(f"not within {timeout:.0f} s: {what}\n" + "\n".join(late))
            time.sleep(0.5)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)


def main(arguments: List[str]) -> int:
    """The exit code: 0 when everything worked, 1 when not."""
    parser = argparse.ArgumentParser(prog="rehearse", description=__doc__)
    parser.add_argument("images", nargs="*", metavar="FROM=TO", help="which local image stands for an image of the objects")
    parser.add_argument("--without", action="append", default=[], metavar="WORKLOAD", help="leave it out, to see what it is for")
    options = parser.parse_args(arguments)
    images = dict(each.split("=", 1) for each in options.images)
    # A signal ends the run through its clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    title = f"muster-rehearsal-{time.time_ns() % 1_000_000:06d}"
    with tempfile.TemporaryDirectory(prefix="muster-rehearsal-") as folder, ExitStack() as undo:
        # Users of containers must be able to pass through it.
        Path(folder).chmod(0o755)
        overlay = Path(folder) / "overlay"
        render.run([str(render.ROOT / "deploy/k8s/new_overlay.sh"), "--demo-worker", str(overlay)])
        objects = Objects(render.load(render.run([str(render.ROOT / "tools/manifests/kustomize.sh"), str(overlay)])))
        wanted = {container["image"] for workload in objects.workloads() for container in workload.containers}
        # Muster's own images as `make images` builds them.
        built = {each: f"{each.rpartition(':')[0]}:{os.environ.get('MUSTER_VERSION', 'dev')}" for each in wanted if each.startswith("muster/")}
        images = {**built, **images}
        print(f"images: {', '.join(sorted(images.get(each, each) for each in wanted))}")
        try:
            node = Node(title, objects, Path(folder), images)
            undo.callback(node.close)
            Rehearsal(objects, node, options.without).run()
        except (Failed, EngineError, render.RenderError) as fault:
            print(f"error: {fault}", file=sys.stderr)
            return 1
    print("the rehearsal is green")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
