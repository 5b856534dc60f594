"""A stack of processes: what the state file of `muster dev` names.

`muster dev` starts again what dies, so `stop` and `kill9` end a process for about a second only, and
nothing can be held down. Gates that need more say that they need containers.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ..model import Red, Skip
from .base import Replica, Stack


class DevStack(Stack):
    """Reads the state file anew for each question: the supervisor rewrites it."""

    kind = "dev"
    containers = False

    def __init__(self, state_file: Path) -> None:
        self.state_file = state_file
        self.api_key = self._state()["api_key"]

    def _state(self) -> Dict[str, Any]:
        try:
            return json.loads(self.state_file.read_text())
        except FileNotFoundError:
            raise Skip(f"{self.state_file} is not there: is `muster dev` running?") from None
        except ValueError as broken:
            raise Skip(f"{self.state_file} is no state file: {broken}") from None

    @property
    def nats_url(self) -> str:  # type: ignore[override]
        return self._state()["nats_url"]

    @property
    def redis_url(self) -> str:  # type: ignore[override]
        return self._state()["redis_url"].replace("redis+cluster://", "redis://")

    def replicas(self, service: Optional[str] = None) -> List[Replica]:
        found = [
            Replica(p["name"], p["service"], p["pid"], p.get("http"), _url(p.get("admin")), target=_address(p.get("admin")))
            for p in self._state()["processes"]
        ]
        return sorted(r for r in found if service in (None, r.service))

    def describe(self) -> Dict[str, Any]:
        names = [replica.name for replica in self.replicas()]
        return {"kind": self.kind, "state_file": self.state_file.name, **self.versions(), "processes": names}

    def kill9(self, replica: Replica, hold: bool = False) -> None:
        self._signal(replica, signal.SIGKILL)

    def hold(self, replica: Replica) -> None:
        """`muster dev` starts again what dies: nothing can be held down."""

    def stop(self, replica: Replica) -> None:
        self._signal(replica, signal.SIGTERM)

    def start(self, replica: Replica) -> None:
        """The supervisor starts it; this waits until it has."""
        ends = time.monotonic() + 30
        while self.replica(replica.name).pid == replica.pid:
            if time.monotonic() > ends:
                raise Red(f"`muster dev` did not start {replica.name} again within 30 s")
            time.sleep(0.1)

    def pause(self, replica: Replica) -> None:
        os.kill(self.replica(replica.name).pid, signal.SIGSTOP)

    def unpause(self, replica: Replica) -> None:
        os.kill(self.replica(replica.name).pid, signal.SIGCONT)

    def check_config(self, replica: Replica) -> Tuple[int, str]:
        """`--check-config` of the same program in the same environment: exit code and words."""
        pairs = Path(f"/proc/{replica.pid}/environ").read_text().split("\0")
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        done = subprocess.run([f"/proc/{replica.pid}/exe", "--check-config"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=30, check=False)
        return done.returncode, done.stdout.strip()

    def logs(self, replica: Replica) -> str:
        return (self.state_file.parent / "logs" / f"{replica.name}.log").read_text(errors="replace")

    def _signal(self, replica: Replica, which: int) -> None:
        try:
            os.kill(replica.pid, which)
        except ProcessLookupError:
            pass


def _url(address: Optional[str]) -> Optional[str]:
    return address if address is None or "://" in address else f"http://{address}"


def _address(url: Optional[str]) -> Optional[str]:
    return url.split("://")[-1] if url else None
