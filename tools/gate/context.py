"""What a gate uses while it runs: its stack, its evidence, its workers.

One context belongs to one run of one gate. Every process that the gate starts through it is stopped when the run
ends, also after a failure.
"""

import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TypeVar

from .model import Red, Skip
from .stacks.base import Stack
from .workers import Execution, Worker, read_log

T = TypeVar("T")


class Context:
    """The argument of `Gate.run` and of `Control.plant`."""

    def __init__(self, stack: Optional[Stack], folder: Path, seed: int, label: str) -> None:
        self._stack = stack
        self.folder = folder
        self.seed = seed
        self.random = random.Random(seed)
        self.label = label
        self.evidence: Dict[str, Any] = {}
        # Set by a control: how this run's workers misbehave (see worker.py), or `absent`.
        self.worker_mode: Optional[str] = None
        # For the gate's own controls.
        self.planted: Dict[str, Any] = {}
        self._running = ExitStack()
        self._began = time.monotonic()

    @property
    def stack(self) -> Any:
        """The stack under test."""
        if self._stack is None:
            raise Skip("this gate needs a stack: start one with --up, or name one by --project or --state-file")
        return self._stack

    # -- evidence

    def expect(self, condition: object, reason: str) -> None:
        """Ends the gate red with this reason unless the condition holds."""
        if not condition:
            raise Red(reason)

    def note(self, key: str, value: Any) -> None:
        """Adds a fact to the verdict document."""
        self.evidence[key] = value

    def count(self, what: str, found: int, wanted: int) -> None:
        """Notes `found of wanted` and ends the gate red unless they are equal. 0 of 0 is red."""
        self.note(what, f"{found} of {wanted}")
        self.expect(wanted > 0, f"{what}: 0 of 0 proves nothing")
        self.expect(found == wanted, f"{what}: {found} of {wanted}")

    def say(self, text: str) -> None:
        """Prints progress with the seconds since the run began."""
        print(f"  [{self.label} {time.monotonic() - self._began:5.1f} s] {text}", file=sys.stderr, flush=True)

    def poll(self, what: str, timeout: float, ask: Callable[[], T], every: float = 0.2) -> T:
        """Calls `ask` until its answer is true and returns that; red after `timeout` seconds.

        `ask` may raise Red to say what is still missing, or OSError while something does not answer. The last
        such text becomes part of the reason.
        """
        ends, last = time.monotonic() + timeout, ""
        while True:
            try:
                answer = ask()
                if answer:
                    return answer
            except (Red, OSError) as missing:
                last = f": {missing}"
            if time.monotonic() >= ends:
                raise Red(f"{what} not within {timeout:.0f} s{last}")
            time.sleep(every)

    # -- workers

    def worker(self, topic: str, kind: str = "http", **options: Any) -> Optional[Worker]:
        """Starts a worker for the topic. Its log is the evidence of what ran.

        `kind` is `http` (tools/gate/worker.py) or `nats` (`muster worker run --builtin count`).
        Options: `tenant`, `threads`, `work_ms`, `lease_ms`, `name`, `mode`, `builtin` (of kind `nats`). Returns
        None when a control planted the fault "no worker".
        """
        mode = options.pop("mode", None) or self.worker_mode
        if mode == "absent":
            self.say(f"planted: no worker for {topic}")
            return None
        worker = Worker.start(self.stack, topic, kind, self.folder, mode if kind == "http" else None, **options)
        self._running.callback(worker.stop)
        return worker

    def executions(self, topic: str) -> List[Execution]:
        """Every execution of the topic's jobs in the logs of this run's workers, in order."""
        return read_log(self.folder, topic)

    # -- the end

    def defer(self, undo: Callable[[], Any]) -> None:
        """Calls `undo` when this run ends, the last one first."""
        self._running.callback(undo)

    def close(self) -> None:
        """Stops everything that this run started."""
        self._running.close()
