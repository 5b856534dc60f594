"""Stores workflows and starts runs of them, as a client does, and follows the runs to their end."""

import time
import uuid
from typing import Any, Dict, List

from .context import Context
from .model import Red

PATIENCE_S = 30.0


def stored(ctx: Context, name: str, steps: List[Dict[str, Any]]) -> str:
    """Stores a workflow of these steps, and returns its name."""
    answer = _careful(ctx, "PUT", f"/workflows/{name}", {"steps": steps}, {})
    if answer.status not in (200, 201):
        raise Red(f"PUT /workflows/{name}: {answer.status} {answer.text[:300]}")
    return name


def started(ctx: Context, name: str, count: int) -> List[str]:
    """Starts so many runs of a workflow, and returns their ids."""
    found = []
    for _ in range(count):
        answer = _careful(ctx, "POST", f"/workflows/{name}/runs", {}, {"Idempotency-Key": uuid.uuid4().hex})
        if answer.status not in (200, 201, 202):
            raise Red(f"POST /workflows/{name}/runs: {answer.status} {answer.text[:300]}")
        found.append(answer.json["id"])
    return found


def runs_ended(ctx: Context, ids: List[str], timeout: float) -> Dict[str, Dict[str, Any]]:
    """Waits until all of these runs have ended and returns them by id; red if one has not ended in time."""
    found: Dict[str, Dict[str, Any]] = {}
    ends = time.monotonic() + timeout
    for run in ids:
        while run not in found:
            answer = _careful(ctx, "GET", f"/runs/{run}?wait_ms=1000", None, {})
            if answer.status != 200:
                raise Red(f"GET /runs/{run}: {answer.status} {answer.text[:300]}")
            if answer.json["done"]:
                found[run] = answer.json
            elif time.monotonic() > ends:
                raise Red(f"{len(found)} of {len(ids)} runs ended within {timeout:.0f} s; {run} is {answer.json['state']}")
    return found


def runs_go_on(ctx: Context, ids: List[str]) -> None:
    """Waits until the workflow service has begun all of these runs."""

    def begun() -> bool:
        for run in ids:
            state = _careful(ctx, "GET", f"/runs/{run}", None, {}).json.get("state")
            ctx.expect(state == "running", f"run {run} is {state}")
        return True

    ctx.poll("the runs go on", PATIENCE_S, begun)


def _careful(ctx: Context, method: str, path: str, body: Any, headers: Dict[str, str]) -> Any:
    """The answer of a gateway; asked again, by turns, while it is 503, 429 or missing."""
    ends, turn, last = time.monotonic() + PATIENCE_S, 0, "no gateway"
    while time.monotonic() < ends:
        try:
            answer = ctx.stack.api(method, path, body, gateway=turn % max(len(ctx.stack.gateways()), 1), headers=headers, timeout=5)
            if answer.status not in (429, 503):
                return answer
            last = f"{answer.status} {answer.text[:200]}"
        except OSError as away:
            last = str(away)
        turn += 1
        time.sleep(0.1)
    raise Red(f"no gateway answered {method} {path} within {PATIENCE_S:.0f} s: {last}")
