"""The container engine and its compose command, as this machine has them.

All commands for containers use the `docker` client: it is installed wherever compose is, and it answers in tens of
milliseconds where compose takes a second.
"""

import json
import os
import shlex
import shutil
import subprocess
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

from ..model import Red, Skip


def present() -> Optional[str]:
    """None when an engine answers, else why there is none."""
    if not shutil.which("docker"):
        return "docker is not installed"
    done = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"no docker engine answers: {done.stderr.strip()[:200]}"


def docker(*args: str, timeout: float = 60.0, check: bool = True) -> str:
    """Runs the client; its standard output. Red with its error text when it fails."""
    try:
        done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError:
        raise Skip("docker is not installed") from None
    except subprocess.TimeoutExpired:
        raise Red(f"docker {' '.join(args[:3])} did not end within {timeout:.0f} s") from None
    if check and done.returncode != 0:
        raise Red(f"docker {' '.join(args[:3])}: {done.stderr.strip()[-600:]}")
    return done.stdout


def inspect(ids: List[str]) -> List[Dict[str, Any]]:
    """Everything that the engine knows of these containers; those that are gone are left out."""
    if not ids:
        return []
    done = subprocess.run(["docker", "inspect", "--type", "container", *ids], capture_output=True, text=True, check=False)
    return json.loads(done.stdout or "[]")


def containers(project: str) -> List[Dict[str, Any]]:
    """The containers of a compose project, running or not."""
    ids = docker("ps", "-aq", "--no-trunc", "--filter", f"label=com.docker.compose.project={project}").split()
    return inspect(ids)


@lru_cache(maxsize=None)
def compose_command() -> Tuple[str, ...]:
    """COMPOSE, `docker compose`, or `docker-compose`, the first that there is."""
    asked = os.environ.get("COMPOSE")
    if asked:
        return tuple(shlex.split(asked))
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise Skip("neither `docker compose` nor `docker-compose` is installed")


def versions() -> Dict[str, str]:
    """Engine and compose."""
    engine = docker("version", "--format", "{{.Server.Version}}").strip()
    done = subprocess.run([*compose_command(), "version", "--short"], capture_output=True, text=True, check=False)
    return {"docker": engine, "compose": done.stdout.strip()}
