"""Ready-made faults for red controls. Each function returns what `Control(plant=…)` takes.

A fault exists inside the `with` block and is undone after it, also if the gate raises.
"""

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence

from .context import Context

Plant = Callable[[Context], ContextManager[Any]]


def worker_mode(mode: str) -> Plant:
    """The gate's HTTP workers misbehave: `twice`, `acks-first` (see worker.py), or `absent`."""

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        ctx.worker_mode = mode
        yield
        ctx.worker_mode = None

    return plant


def override(
    services: Dict[str, Dict[str, Any]],
    extra: Optional[Dict[str, Dict[str, Any]]] = None,
    env: Optional[Dict[str, Optional[str]]] = None,
    ready: bool = False,
) -> Plant:
    """Creates these services again from the compose files plus this: `{"gateway-2": {"user": "root"}}`.

    `extra` are services that are not in the compose files; they are removed afterwards. With `ready` the plant waits
    until the changed stack is ready; leave it out if the fault prevents that.
    """

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        added = dict(extra or {})
        try:
            changed = {"services": {**services, **added}}
            ctx.stack.up(overrides=[changed], env=env, services=[*added, *services])
            if ready:
                ctx.stack.wait_ready(60)
            yield
        finally:
            ctx.stack.up(services=list(services))
            for name in added:
                ctx.stack.remove(name)
            ctx.stack.wait_ready(60)

    return plant


def stopped(names: Sequence[str]) -> Plant:
    """Stops these replicas."""

    @contextmanager
    def plant(ctx: Context) -> Iterator[None]:
        replicas = [ctx.stack.replica(name) for name in names]
        try:
            for replica in replicas:
                ctx.stack.stop(replica)
            yield
        finally:
            for replica in replicas:
                ctx.stack.start(replica)
            ctx.stack.wait_ready(60)

    return plant
