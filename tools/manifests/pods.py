"""Runs pods of rendered objects as plain containers, as a node would: image, command, environment from
Secrets and ConfigMaps, user, read-only root, no capabilities, limits, files, claims, names, probes.

Left out: the network policies, scheduling and scaling. Everything that is started carries the label
`muster.rehearsal` with the rehearsal's name and is removed by `close`.
"""

import base64
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from .objects import Objects, Workload, dig, listing, mapping, name
from .quantity import parse


class EngineError(Exception):
    """The container engine refused; its own words."""


def docker(*arguments: str, check: bool = True, timeout: float = 120) -> str:
    """What docker prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise EngineError(f"docker {' '.join(arguments[:2])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Pod:
    """One pod: its name and what started it."""

    name: str
    workload: Workload


class Node:
    """A stand-in for a cluster's nodes: one network, and a folder for files and claims."""

    def __init__(self, title: str, objects: Objects, folder: Path, images: Dict[str, str]) -> None:
        self.title, self.objects, self.folder, self.images = title, objects, folder, images
        docker("network", "create", "--label", f"muster.rehearsal={title}", title)

    def close(self) -> None:
        """Removes containers and network."""
        found = docker("ps", "--all", "--quiet", "--filter", f"label=muster.rehearsal={self.title}", check=False).split()
        if found:
            docker("rm", "--force", "--volumes", *found, check=False)
        docker("network", "rm", self.title, check=False)

    def start(self, pod: Pod) -> None:
        """Starts the pod's containers; the first has the pod's address, the others share it."""
        for number, container in enumerate(pod.workload.containers):
            self._start(pod, container, number == 0)

    def remove(self, pods: List[Pod]) -> None:
        """Stops these pods together and removes their containers; claims stay."""
        mains = [self._main(pod) for pod in pods]
        docker("stop", "--time", "30", *mains)
        everything = [self._called(pod, container) for pod in pods for container in reversed(pod.workload.containers)]
        docker("rm", "--force", *everything)

    def occupy(self, count: int, pod: Pod) -> None:
        """Takes the addresses that are free now, with idle containers of the pod's image."""
        image = pod.workload.containers[0]["image"]
        for _ in range(count):
            docker("run", "--detach", "--label", f"muster.rehearsal={self.title}", "--network", self.title,
                   "--entrypoint", "sleep", self.images.get(image, image), "3600")

    def signal(self, pod: Pod) -> int:
        """Asks the pod to stop, as Kubernetes does, and returns its exit code."""
        grace = str(pod.workload.pod.get("terminationGracePeriodSeconds", 30))
        docker("stop", "--time", grace, self._main(pod))
        return int(docker("inspect", "--format", "{{.State.ExitCode}}", self._main(pod)))

    def address(self, pod: Pod) -> str:
        """The pod's address, which the host can reach."""
        return docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", self._main(pod))

    def exit_code(self, pod: Pod) -> Optional[int]:
        """How the pod ended, or None while it runs."""
        state, code = docker("inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", self._main(pod)).split()
        return None if state == "true" else int(code)

    def logs(self, pod: Pod) -> str:
        """The last lines of the pod."""
        done = subprocess.run(["docker", "logs", "--tail", "8", self._main(pod)], capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    def ready(self, pod: Pod) -> bool:
        """Whether every readiness probe of the pod says so; a pod without one is ready while it runs."""
        if self.exit_code(pod) is not None:
            return False
        return all(self._ask(pod, container, container.get("readinessProbe") or container.get("livenessProbe"))
                   for container in pod.workload.containers)

    # -- one container

    def _main(self, pod: Pod) -> str:
        return self._called(pod, pod.workload.containers[0])

    def _called(self, pod: Pod, container: Dict[str, Any]) -> str:
        return f"{self.title}-{pod.name}-{container['name']}"

    def _ask(self, pod: Pod, container: Dict[str, Any], probe: Optional[Dict[str, Any]]) -> bool:
        if not probe:
            return True
        if "exec" in probe:
            done = subprocess.run(["docker", "exec", self._called(pod, container), *probe["exec"]["command"]],
                                  capture_output=True, timeout=30, check=False)
            return done.returncode == 0
        port = dict(pod.workload.ports()).get(probe["httpGet"]["port"], probe["httpGet"]["port"])
        try:
            with urllib.request.urlopen(f"http://{self.address(pod)}:{port}{probe['httpGet']['path']}", timeout=5) as answer:
                return answer.status < 400
        except (urllib.error.URLError, OSError):
            return False

    def _start(self, pod: Pod, container: Dict[str, Any], first: bool) -> None:
        security = {**mapping(pod.workload.pod.get("securityContext")), **mapping(container.get("securityContext"))}
        limits = mapping(dig(container, "resources", "limits"))
        arguments = ["run", "--detach", "--name", self._called(pod, container), "--label", f"muster.rehearsal={self.title}",
                     "--user", f"{security['runAsUser']}:{security['runAsGroup']}", "--read-only", "--cap-drop", "ALL",
                     "--security-opt", "no-new-privileges", "--memory", str(int(parse(limits["memory"]) or 0)),
                     "--cpus", str(parse(limits["cpu"]))]
        if first:
            service = dig(pod.workload.obj, "spec", "serviceName")
            arguments += ["--network", self.title, "--hostname", pod.name]
            arguments += ["--network-alias", f"{pod.name}.{service}"] if service else []
        else:
            arguments += ["--network", f"container:{self._main(pod)}"]
        for variable, value in self.environment(pod, container).items():
            arguments += ["--env", f"{variable}={value}"]
        for mount in listing(container.get("volumeMounts")):
            mode = ":ro" if mount.get("readOnly") else ""
            arguments += ["--volume", f"{self._volume(pod, mount['name'], security)}:{mount['mountPath']}{mode}"]
        command, more = listing(container.get("command")), listing(container.get("args"))
        arguments += ["--entrypoint", command[0]] if command else []
        image = container["image"]
        docker(*arguments, self.images.get(image, image), *command[1:], *more)

    def environment(self, pod: Pod, container: Dict[str, Any]) -> Dict[str, str]:
        """All variables of a container, with the values from Secrets, ConfigMaps and the pod itself."""
        found: Dict[str, str] = {}
        for source in listing(container.get("envFrom")):
            found.update(self._data("ConfigMap", dig(source, "configMapRef", "name")))
        for variable in listing(container.get("env")):
            value, secret = variable.get("value"), dig(variable, "valueFrom", "secretKeyRef")
            if secret:
                value = self._data("Secret", secret["name"])[secret["key"]]
            elif dig(variable, "valueFrom", "fieldRef", "fieldPath") == "metadata.name":
                value = pod.name
            # Kubernetes puts in variables that stand above.
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda named: found.get(named[1], named[0]), str(value))
        return found

    def _data(self, kind: str, called: str) -> Dict[str, str]:
        found = self.objects.get(kind, called) or {}
        plain = {key: base64.b64decode(value).decode() if kind == "Secret" else value for key, value in mapping(found.get("data")).items()}
        return {**plain, **mapping(found.get("stringData"))}

    def _volume(self, pod: Pod, called: str, security: Dict[str, Any]) -> Path:
        claims = [name(claim) for claim in pod.workload.claims]
        folder = self.folder / (f"claim-{called}-{pod.name}" if called in claims else f"files-{pod.name}-{called}")
        if called in claims:
            if not folder.exists():
                folder.mkdir(parents=True)
                # A node gives a claim to the pod's fsGroup.
                shutil.chown(folder, group=int(security["fsGroup"]))
                folder.chmod(0o2770)
            return folder
        volume = next(each for each in listing(pod.workload.pod.get("volumes")) if each["name"] == called)
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in self._data("ConfigMap", volume["configMap"]["name"]).items():
            (folder / file).write_text(text)
            os.chmod(folder / file, 0o644)
        return folder
