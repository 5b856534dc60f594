"""A stack of containers: one compose project, ours (`own`) or one that runs already (`running`).

It reads the state of replicas from the engine each time, and changes them through the engine. Only `up` uses compose,
with override files for the faults of controls.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..model import Red, Skip
from . import engine
from .base import OUR_SERVICES, ROOT, Replica, Stack, find_program
from .ports import free_ports

ADMIN_PORT = {"gateway": "9092/tcp", "scheduler": "9090/tcp", "workflow": "9093/tcp"}
HTTP_PORT = {"gateway": "8081/tcp"}
SECRETS = ("MUSTER_API_KEY", "REDIS_PASSWORD", "NATS_USER", "NATS_PASSWORD")
PORTS = (
    "GATEWAY_1_PORT GATEWAY_2_PORT GATEWAY_1_ADMIN_PORT GATEWAY_2_ADMIN_PORT SCHEDULER_1_ADMIN_PORT "
    "SCHEDULER_2_ADMIN_PORT WORKFLOW_1_ADMIN_PORT WORKFLOW_2_ADMIN_PORT REDIS_PORT NATS_PORT NATS_MONITOR_PORT "
    "PROMETHEUS_PORT REDIS_EXPORTER_PORT GRAFANA_PORT OTLP_PORT"
).split()
Override = Union[str, Path, Dict[str, Any]]


class ComposeStack(Stack):
    """Containers of one compose project."""

    kind = "compose"
    containers = True

    def __init__(self, project: str, files: Sequence[Path], directory: Path, env: Dict[str, str], ours: bool) -> None:
        self.project, self.files, self.directory, self.ours = project, list(files), directory, ours
        self.env = env
        self.profiles: List[str] = []
        self.scratch: Optional[Path] = None
        self._urls: Optional[List[str]] = None
        self._policies: Dict[str, str] = {}
        self._secrets: Dict[str, str] = {}

    # -- where it comes from

    @staticmethod
    def own(overlays: Sequence[str], profiles: Sequence[str], scratch: Path, version: str) -> "ComposeStack":
        """Our own project, with a unique name, secrets and host ports. It is not started yet."""
        files = [ROOT / "docker-compose.yml", *(ROOT / f"docker-compose.{name}.yaml" for name in overlays)]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise Skip(f"there is no {', '.join(missing)}")
        values = {name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)))}
        values.update({name: f"gate{secrets.token_hex(12)}" for name in SECRETS})
        values.update(NATS_USER="muster", MUSTER_VERSION=version)
        suffix = "-".join(["", *overlays]) if tuple(overlays) != ("ha",) else ""
        stack = ComposeStack(f"mgate{os.getpid()}{suffix}", files, ROOT, values, ours=True)
        stack.profiles = list(profiles)
        stack.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        return stack

    @staticmethod
    def running(project: str, scratch: Path) -> "ComposeStack":
        """A project that runs already; its files and folder are what compose noted on its containers."""
        found = engine.containers(project)
        if not found:
            raise Skip(f"no container of a compose project {project!r} is there")
        labels = found[0]["Config"]["Labels"]
        folder = Path(labels.get("com.docker.compose.project.working_dir", str(ROOT)))
        names = labels.get("com.docker.compose.project.config_files", "docker-compose.yml").split(",")
        stack = ComposeStack(project, [folder / name for name in names], folder, {}, ours=False)
        stack.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        stack._learn(found)
        return stack

    # -- compose

    def compose(self, *args: str, env: Optional[Dict[str, Optional[str]]] = None, timeout: float = 240.0,
                overrides: Sequence[Override] = ()) -> str:
        """Runs compose on this project; Red with its error text if it fails. A value None in `env` is unset."""
        values: Dict[str, Optional[str]] = {**self.env, **(env or {})}
        command = [*engine.compose_command(), "-p", self.project, "--project-directory", str(self.directory)]
        if self.ours:
            command += ["--env-file", str(self._env_file(values))]
        for path in [*self.files, *(self._override_file(n, each) for n, each in enumerate(overrides))]:
            command += ["-f", str(path)]
        for profile in self.profiles:
            command += ["--profile", profile]
        shell = {name: value for name, value in os.environ.items() if name not in values and name not in SECRETS}
        shell.update({name: value for name, value in values.items() if value is not None})
        try:
            done = subprocess.run([*command, *args], env=shell, cwd=self.directory, capture_output=True, text=True,
                                  timeout=timeout, check=False)
        except subprocess.TimeoutExpired as late:
            said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else (late.stderr or "")
            raise Red(f"compose {args[0]} did not end within {timeout:.0f} s: {said.strip()[-300:]}") from None
        if done.returncode != 0:
            raise Red(f"compose {args[0]} failed: {_plain(done.stderr or done.stdout)[-700:]}")
        return done.stdout

    def up(self, overrides: Sequence[Override] = (), env: Optional[Dict[str, Optional[str]]] = None,
           services: Sequence[str] = (), timeout: float = 240.0) -> None:
        """Brings the project into the state that its files and these overrides say.

        An override is a file, or a dict like a compose file. With `services` only those are touched.
        Call it without arguments to undo an earlier override. Waits for nothing: see `wait_ready`.
        """
        only = ["--no-deps", *services] if services else ["--remove-orphans"]
        building = ["--no-build"] if self.ours else []
        self._urls = None
        self.compose("up", "-d", *building, *only, env=env, overrides=overrides, timeout=timeout)
        if not env and not overrides:
            self._learn(engine.containers(self.project))

    def down(self, volumes: bool = True) -> None:
        """Removes the project with networks and volumes, if it is ours; also when it is half there."""
        if not self.ours:
            return
        self._urls = None
        mine = f"label=com.docker.compose.project={self.project}"
        ids = engine.docker("ps", "-aq", "--filter", mine, check=False).split()
        if ids:
            engine.docker("rm", "-f", "-v", *ids, check=False, timeout=120)
        for kind in ("network", "volume") if volumes else ("network",):
            names = engine.docker(kind, "ls", "-q", "--filter", mine, check=False).split()
            if names:
                engine.docker(kind, "rm", *names, check=False)

    def remove(self, service: str) -> None:
        """Removes the containers of one service, for those that only an override had."""
        mine = [f"label=com.docker.compose.project={self.project}", f"label=com.docker.compose.service={service}"]
        ids = engine.docker("ps", "-aq", *(word for each in mine for word in ("--filter", each))).split()
        if ids:
            engine.docker("rm", "-f", "-v", *ids)

    # -- its parts

    def inspected(self) -> List[Dict[str, Any]]:
        """All that the engine knows of this project's containers."""
        return engine.containers(self.project)

    def replicas(self, service: Optional[str] = None) -> List[Replica]:
        found = [_replica(container) for container in self.inspected()]
        return sorted(r for r in found if service in (None, r.service))

    def gateways(self) -> List[str]:
        # Host ports do not change while containers come and go, and a gate asks for them often.
        if self._urls is None:
            self._urls = super().gateways()
        return self._urls

    def describe(self) -> Dict[str, Any]:
        found = self.inspected()
        images = {each["Config"]["Image"]: each["Image"].replace("sha256:", "")[:12] for each in found}
        return {"kind": self.kind, "project": self.project, "files": [f.name for f in self.files], **self.versions(),
                **engine.versions(), "images": images}

    def redis(self, *command: str) -> str:
        if self.redis_url:
            return super().redis(*command)
        node = next((r for r in self.replicas("redis") if r.state == "running"), None)
        if node is None or not node.container:
            raise OSError("no redis container runs")
        words = ["exec", "-e", f"REDISCLI_AUTH={self._secrets.get('redis', '')}", node.container, "redis-cli", "-c"]
        return engine.docker(*words, *command).rstrip("\n")

    def program(self, name: str) -> str:
        """One that was built on this host; else the one in the image of this stack's own worker, if it starts here."""
        try:
            return find_program(name)
        except Skip as missing:
            if name != "muster" or self.scratch is None:
                raise
            return self._from_image(missing)

    def _from_image(self, missing: Skip) -> str:
        assert self.scratch is not None
        copy = self.scratch / "muster"
        if copy.is_file():
            return str(copy)
        ours = [each for each in self.inspected() if re.search(r"(^|/)muster/cli(:|@|$)", each["Config"]["Image"])]
        if not ours:
            raise missing
        engine.docker("cp", f"{ours[0]['Id']}:/usr/local/bin/muster", str(copy))
        # The image's C library may be newer than this host's.
        if subprocess.run([str(copy), "--version"], capture_output=True, check=False).returncode != 0:
            copy.unlink()
            raise Skip(f"{missing}; the one in {ours[0]['Config']['Image']} does not start on this host")
        return str(copy)

    def secrets(self) -> Dict[str, str]:
        """The secrets of this stack by name, for a search that must not find them."""
        found = {"MUSTER_API_KEY": self.api_key, "REDIS_PASSWORD": self._secrets.get("redis", ""),
                 "NATS_PASSWORD": self._secrets.get("nats", "")}
        return {name: value for name, value in found.items() if value}

    # -- what can happen to them

    def kill9(self, replica: Replica, hold: bool = False) -> None:
        if hold:
            self.hold(replica)
        # `docker kill` counts as a stop by hand, and no restart policy acts on it: a crash is a
        # SIGKILL of the process itself.
        try:
            os.kill(replica.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            done = subprocess.run(["sudo", "-n", "kill", "-9", str(replica.pid)], capture_output=True, check=False)
            if done.returncode != 0:
                raise Skip("killing a container's process needs root: run the gate as root") from None

    def hold(self, replica: Replica) -> None:
        """It stays down after its next end until `start`: no restart policy acts."""
        container = _container(replica)
        policy = engine.inspect([container])[0]["HostConfig"]["RestartPolicy"]["Name"] or "no"
        self._policies[container] = policy
        engine.docker("update", "--restart=no", container)

    def stop(self, replica: Replica) -> None:
        engine.docker("stop", "-t", "20", _container(replica))

    def stop_all(self, replicas: Sequence[Replica]) -> None:
        """Orderly stops, all at once."""
        if replicas:
            engine.docker("stop", "-t", "20", *(_container(each) for each in replicas), timeout=120)

    def start(self, replica: Replica) -> None:
        policy = self._policies.pop(_container(replica), None)
        if policy:
            engine.docker("update", f"--restart={policy}", _container(replica))
        engine.docker("start", _container(replica))

    def pause(self, replica: Replica) -> None:
        engine.docker("pause", _container(replica))

    def unpause(self, replica: Replica) -> None:
        engine.docker("unpause", _container(replica), check=False)

    def disconnect(self, replica: Replica) -> None:
        """Cuts it off from every network of the project."""
        for network, details in engine.inspect([_container(replica)])[0]["NetworkSettings"]["Networks"].items():
            self._cut.setdefault(_container(replica), {})[network] = details.get("Aliases") or []
            engine.docker("network", "disconnect", network, _container(replica))

    def connect(self, replica: Replica) -> None:
        """Undoes `disconnect`, with the names that others know it by."""
        for network, aliases in self._cut.pop(_container(replica), {}).items():
            names = [word for alias in aliases for word in ("--alias", alias)]
            engine.docker("network", "connect", *names, network, _container(replica))

    def check_config(self, replica: Replica) -> Tuple[int, str]:
        """`--check-config` inside the replica's own container: exit code and words."""
        return self.inside(replica, "/usr/local/bin/muster-service", "--check-config")

    def inside(self, replica: Replica, *command: str) -> Tuple[int, str]:
        """Runs a program in the container."""
        done = subprocess.run(["docker", "exec", _container(replica), *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30, check=False)
        return done.returncode, done.stdout.decode(errors="replace").strip()

    def logs(self, replica: Replica) -> str:
        done = subprocess.run(["docker", "logs", "--tail", "20000", _container(replica)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        return done.stdout.decode(errors="replace")

    # -- inside

    @property
    def _cut(self) -> Dict[str, Dict[str, List[str]]]:
        return self.__dict__.setdefault("cut", {})

    def _learn(self, found: List[Dict[str, Any]]) -> None:
        """Reads secrets and addresses off the containers: the same for our stacks and running ones."""
        for each in found:
            replica, env = _replica(each), _environment(each)
            if replica.service == "gateway":
                if env.get("MUSTER_API_KEY"):
                    self.api_key = env["MUSTER_API_KEY"].split(",")[0]
                for store in ("redis", "nats"):
                    place = urllib.parse.urlsplit(env.get(f"{store.upper()}_URL", "").split(",")[0])
                    if place.password:
                        self._secrets[store] = urllib.parse.unquote(place.password)
                        self._secrets[store + "_user"] = urllib.parse.unquote(place.username or "")
        self.api_key = self.api_key or os.environ.get("MUSTER_API_KEY", "")
        published = {_replica(each).name: _published(each) for each in found}
        redis = published.get("redis", {}).get("6379/tcp")
        self.redis_url = f"redis://{self._login('redis')}{redis}" if redis else ""
        nats = next((p["4222/tcp"] for n, p in sorted(published.items()) if n.startswith("nats") and "4222/tcp" in p), None)
        self.nats_url = f"nats://{self._login('nats')}{nats}" if nats else ""
        prometheus = published.get("prometheus", {}).get("9090/tcp")
        self.prometheus = f"http://{prometheus}" if prometheus else None

    def _login(self, store: str) -> str:
        word, user = self._secrets.get(store), self._secrets.get(store + "_user", "")
        quote = urllib.parse.quote
        return f"{quote(user, safe='')}:{quote(word, safe='')}@" if word else ""

    def _env_file(self, values: Dict[str, Optional[str]]) -> Path:
        assert self.scratch is not None
        path = self.scratch / f"{self.project}.env"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items() if value is not None)
        return path

    def _override_file(self, n: int, override: Override) -> Path:
        if not isinstance(override, dict):
            return Path(override)
        assert self.scratch is not None
        # JSON is YAML. Compose 1.29 wants one `version` in all files, or in none.
        version = re.search(r"^version:\s*[\"']?([\d.]+)", self.files[0].read_text(), re.MULTILINE)
        path = self.scratch / f"{self.project}-override-{n}.json"
        path.write_text(json.dumps({**({"version": version.group(1)} if version else {}), **override}, indent=1))
        return path


def _plain(text: str) -> str:
    """Compose's words without the colours and the progress lines."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())


def _container(replica: Replica) -> str:
    if not replica.container:
        raise Skip(f"{replica.name} is no container")
    return replica.container


def _environment(container: Dict[str, Any]) -> Dict[str, str]:
    return dict(pair.split("=", 1) for pair in container["Config"]["Env"] or [] if "=" in pair)


def _published(container: Dict[str, Any]) -> Dict[str, str]:
    """Container port → `host:port` on this host. A binding to all addresses is reached by loopback."""
    found = {}
    for port, bindings in (container["HostConfig"]["PortBindings"] or {}).items():
        for binding in bindings or []:
            everywhere = binding["HostIp"] in ("", "0.0.0.0", "::")
            if not everywhere or port not in found:
                found[port] = f"{'127.0.0.1' if everywhere else binding['HostIp']}:{binding['HostPort']}"
    return found


def _replica(container: Dict[str, Any]) -> Replica:
    name = container["Config"]["Labels"].get("com.docker.compose.service", container["Name"].lstrip("/"))
    service = re.sub(r"-\d+$", "", name)
    target = f"{name}:{ADMIN_PORT[service].split('/')[0]}" if service in ADMIN_PORT else None
    if service in OUR_SERVICES:
        name = _environment(container).get("MUSTER_INSTANCE_ID") or (name if service != name else f"{name}-1")
    ports = _published(container)
    http, admin = ports.get(HTTP_PORT.get(service, "")), ports.get(ADMIN_PORT.get(service, ""))
    state = container["State"]
    return Replica(name, service, state["Pid"], http and f"http://{http}", admin and f"http://{admin}",
                   container["Id"], state["Status"], target)
