"""What every kind of stack can do: answer requests, run Redis commands, lose replicas.

A stack looks up its replicas each time and never caches them, because gates kill and restart them.
"""

import json
import os
import pwd
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from .. import nats
from ..model import Red, Skip
from .resp import Redis

ROOT = Path(__file__).resolve().parents[3]
OUR_SERVICES = ("gateway", "scheduler", "workflow")


class Replica(NamedTuple):
    """One running part of a stack. `http` and `admin` are base URLs that this host can reach; `target` is
    the address by which the stack's Prometheus scrapes it."""

    name: str
    service: str
    pid: int
    http: Optional[str] = None
    admin: Optional[str] = None
    container: Optional[str] = None
    state: str = "running"
    target: Optional[str] = None


class Response(NamedTuple):
    """An answer of the API. `json` is None when the body is no JSON."""

    status: int
    headers: Dict[str, str]
    json: Any
    text: str = ""


class Sample(NamedTuple):
    """One value of a Prometheus query."""

    labels: Dict[str, str]
    value: float


def request(
    method: str, url: str, body: Any = None, headers: Optional[Dict[str, str]] = None, timeout: float = 35.0
) -> Response:
    """One HTTP request. Any status is an answer; OSError means that nothing answered."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            status, found, text = answer.status, answer.headers, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refused:
        status, found, text = refused.code, refused.headers, refused.read().decode(errors="replace")
    except urllib.error.URLError as away:
        raise OSError(f"{method} {url}: {away.reason}") from away
    except (OSError, ValueError) as broken:  # The connection was cut in the middle.
        raise OSError(f"{method} {url}: {broken}") from broken
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return Response(status, {name.lower(): value for name, value in found.items()}, parsed, text)


def find_program(name: str) -> str:
    """A program of ours: MUSTER_BIN, what cargo built last, or PATH."""
    named = os.environ.get("MUSTER_BIN")
    folders = ([Path(named)] if named else []) + [target / kind for target in _targets() for kind in ("release", "dist", "debug")]
    built = [folder / name for folder in folders if (folder / name).is_file()]
    if named and built:
        return str(built[0])
    if built:
        return str(max(built, key=lambda path: path.stat().st_mtime))
    found = shutil.which(name)
    if not found:
        raise Skip(f"the program {name} is not built: run `make build`, or set MUSTER_BIN to the folder that has it")
    return found


def _targets() -> List[Path]:
    """Where cargo may have put programs. `sudo` changes HOME and keeps few variables, so the folders of the user who
    called it count too."""
    asked = os.environ.get("CARGO_TARGET_DIR")
    if asked:
        return [Path(asked)]
    homes = [Path.home()]
    caller = os.environ.get("SUDO_USER")
    if caller and os.geteuid() == 0:
        try:
            homes.append(Path(pwd.getpwnam(caller).pw_dir))
        except KeyError:
            pass
    return [*(home / ".cache/muster/target" for home in homes), ROOT / "target"]


class Stack:
    """What compose stacks and dev stacks have in common."""

    kind = "stack"
    containers = False
    api_key = ""
    nats_url = ""
    redis_url = ""
    prometheus: Optional[str] = None

    # -- each kind of stack says

    def replicas(self, service: Optional[str] = None) -> List[Replica]:
        """Its parts, those of one service or all; in order of their names."""
        raise NotImplementedError

    def describe(self) -> Dict[str, Any]:
        """Kind, versions, image ids: what a verdict is about."""
        raise NotImplementedError

    def kill9(self, replica: Replica, hold: bool = False) -> None:
        """A crash. With `hold` it stays down until `start`, where the stack can do that."""
        raise NotImplementedError

    def stop(self, replica: Replica) -> None:
        """An orderly stop. It stays down until `start`, where the stack can do that."""
        raise NotImplementedError

    def start(self, replica: Replica) -> None:
        """Starts it again after `stop` or `kill9`."""
        raise NotImplementedError

    def pause(self, replica: Replica) -> None:
        """Pauses it."""
        raise NotImplementedError

    def unpause(self, replica: Replica) -> None:
        """Continues it after a pause."""
        raise NotImplementedError

    def logs(self, replica: Replica) -> str:
        """Its log."""
        raise NotImplementedError

    def down(self, volumes: bool = True) -> None:
        """Stops the stack, if it was started here."""

    # -- the same for all

    def versions(self) -> Dict[str, str]:
        """What the parts say of themselves; `?` where one does not answer."""
        found = {"muster": "?", "redis": "?", "nats": nats.version(self.nats_url) if self.nats_url else "?"}
        try:
            found["muster"] = (self.api("GET", "/status", timeout=5).json or {}).get("version", "?")
            lines = dict(line.split(":", 1) for line in self.redis("INFO", "server").splitlines() if ":" in line)
            found["redis"] = lines.get("redis_version", "?").strip()
        except (OSError, Red):
            pass
        return found

    def services(self) -> List[str]:
        """The kinds of parts that it has."""
        return sorted({replica.service for replica in self.replicas()})

    def replica(self, name: str) -> Replica:
        """One part by its name."""
        for replica in self.replicas():
            if replica.name == name:
                return replica
        raise Red(f"there is no {name} in this stack")

    def gateways(self) -> List[str]:
        """Base URLs of the gateways."""
        return [replica.http for replica in self.replicas("gateway") if replica.http]

    def program(self, name: str) -> str:
        """The path of one of our programs on this host."""
        return find_program(name)

    def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        gateway: int = 0,
        key: Optional[str] = None,
        tenant: Optional[str] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: float = 35.0,
    ) -> Response:
        """A request to the API (`/jobs`) of the n-th gateway; `key=""` sends none."""
        urls = self.gateways()
        if gateway >= len(urls):
            raise OSError(f"there is no gateway {gateway + 1}: {len(urls)} run")
        sent = dict(headers or {})
        key = self.api_key if key is None else key
        if key:
            sent.setdefault("Authorization", f"Bearer {key}")
        if tenant:
            sent["Muster-Tenant"] = tenant
        url = urls[gateway] + (path if path.startswith("/api/") else "/api/v1" + path)
        return request(method, url, body, sent, timeout)

    def scrape(self, replica: Replica) -> str:
        """The metrics of one replica, from its admin port."""
        if not replica.admin:
            raise Skip(f"{replica.name} has no admin port that this host can reach")
        return request("GET", replica.admin + "/metrics", timeout=10).text

    def prom(self, query: str) -> List[Sample]:
        """An instant query to the stack's Prometheus."""
        if not self.prometheus:
            raise Skip("this stack has no Prometheus")
        answer = request("GET", f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10)
        if answer.status != 200 or answer.json["data"]["resultType"] not in ("vector", "scalar"):
            raise Red(f"Prometheus does not answer {query!r}: {answer.status} {answer.text[:200]}")
        result = answer.json["data"]["result"]
        if answer.json["data"]["resultType"] == "scalar":
            return [Sample({}, float(result[1]))]
        return [Sample(item["metric"], float(item["value"][1])) for item in result]

    def redis(self, *command: str) -> str:
        """A Redis command; the answer as text, lists one item a line, nil as an empty text."""
        return Redis.ask(self.redis_url, *command)

    def muster(self, *args: str, check: bool = True, timeout: float = 60.0) -> str:
        """The CLI on this stack; its standard output."""
        environment = dict(os.environ, MUSTER_URL=",".join(self.gateways()), MUSTER_API_KEY=self.api_key)
        command = [self.program("muster"), *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise Red(f"muster {' '.join(args)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        return done.stdout

    def unready(self, replicas: Optional[List[Replica]] = None) -> Dict[str, str]:
        """Those of our services that are not ready, each with the reason; `degraded` is not ready."""
        found: Dict[str, str] = {}
        for replica in self.replicas() if replicas is None else replicas:
            if replica.service not in OUR_SERVICES:
                continue
            if replica.state != "running" or not replica.admin:
                found[replica.name] = f"{replica.state}, {self._last_words(replica)}"
                continue
            try:
                answer = request("GET", replica.admin + "/readyz", timeout=3)
            except OSError as away:
                found[replica.name] = str(away)
                continue
            body = answer.json if isinstance(answer.json, dict) else {}
            if answer.status != 200 or body.get("status") == "degraded":
                found[replica.name] = answer.text.strip()[:400]
        return found

    def _last_words(self, replica: Replica) -> str:
        """The end of its log: why a replica that does not run has ended."""
        try:
            lines = [line.strip() for line in self.logs(replica).splitlines() if line.strip()]
        except (OSError, subprocess.SubprocessError):
            lines = []
        faults = [line for line in lines if re.search(r"error|warn|refus|fail", line, re.IGNORECASE)]
        return f"its log ends with: {(faults or lines)[-1][-300:]}" if lines else "its log is empty"

    def wait_ready(self, timeout: float = 60.0) -> float:
        """Waits until every replica of our services is ready; the seconds that it took."""
        began = time.monotonic()
        while True:
            replicas = [r for r in self.replicas() if r.service in OUR_SERVICES]
            missing = self.unready(replicas) if replicas else {"services": "none runs"}
            took = time.monotonic() - began
            if not missing:
                return took
            if took > timeout:
                # One that ends again and again may have been caught between two lives, where only its log says why.
                for replica in replicas:
                    if "its log" not in missing.get(replica.name, "its log"):
                        missing[replica.name] += f"; {self._last_words(replica)}"
                why = "; ".join(f"{name}: {reason}" for name, reason in sorted(missing.items()))
                raise Red(f"not ready within {timeout:.0f} s: {why}")
            time.sleep(0.25)

    def keep_logs(self, folder: Path) -> None:
        """Copies every part's log into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for replica in self.replicas():
            try:
                (folder / f"{replica.name}.log").write_text(self.logs(replica))
            except (OSError, Red, Skip, subprocess.SubprocessError) as fault:
                (folder / f"{replica.name}.log").write_text(f"no log: {fault}\n")
