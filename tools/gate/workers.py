"""The workers that a gate starts, and their execution log.

Gates use the log as evidence of executions: a worker writes one line for each execution, before it works. All workers
of a topic share one file.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from .stacks.base import Stack


class Execution(NamedTuple):
    """One line of the log."""

    job: str
    attempt: int
    fence: int
    worker: str


def log_file(folder: Path, topic: str) -> Path:
    """The execution log of the topic."""
    return folder / f"executions-{topic}.log"


def read_log(folder: Path, topic: str) -> List[Execution]:
    """The executions so far, in the order in which they were written."""
    try:
        text = log_file(folder, topic).read_text()
    except FileNotFoundError:
        return []
    # A line without its end is still being written.
    lines = [line.split() for line in text.split("\n")[:-1]]
    return [Execution(job, int(attempt), int(fence), by[0] if by else "") for job, attempt, fence, *by in lines]


class Worker:
    """A worker process on this host, beside the stack."""

    def __init__(self, name: str, topic: str, kind: str, process: "subprocess.Popen[bytes]") -> None:
        self.name, self.topic, self.kind, self.process = name, topic, kind, process

    @property
    def pid(self) -> int:
        """Its process id on this host."""
        return self.process.pid

    @staticmethod
    def start(
        stack: Stack,
        topic: str,
        kind: str,
        folder: Path,
        mode: Optional[str],
        tenant: str = "default",
        threads: int = 4,
        work_ms: int = 0,
        lease_ms: int = 10_000,
        name: Optional[str] = None,
        extra: Optional[List[str]] = None,
        builtin: str = "count",
    ) -> "Worker":
        """Starts the worker; the caller checks whether the stack knows it already."""
        name = name or f"gate-{kind}-{uuid.uuid4().hex[:6]}"
        environment: Dict[str, Any] = dict(os.environ, MUSTER_API_KEY=stack.api_key)
        log = str(log_file(folder, topic))
        if kind == "http":
            command = [sys.executable, str(Path(__file__).with_name("worker.py")), "--url", ",".join(stack.gateways())]
            command += ["--topic", topic, "--log", log, "--tenant", tenant, "--id", name, "--threads", str(threads)]
            command += ["--work-ms", str(work_ms), "--lease-ms", str(lease_ms), *(["--mode", mode] if mode else [])]
        else:
            command = [stack.program("muster"), "worker", "run", "--topic", topic, "--tenant", tenant, "--id", name]
            command += ["--concurrency", str(threads), "--lease", f"{lease_ms}ms"]
            command += ["--builtin", builtin, "--count-file", log]
            environment["NATS_URL"] = stack.nats_url
        output = open(folder / f"{name}.out", "ab")  # noqa: SIM115 - the child holds it
        process = subprocess.Popen(
            [*command, *(extra or [])], env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        )
        output.close()
        return Worker(name, topic, kind, process)

    def kill9(self) -> None:
        """Kills it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 10.0) -> None:
        """Asks it to leave, then kills it if it stays."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
