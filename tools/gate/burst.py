"""Checks that all gateways share one rate limit: sends a burst for a new tenant and counts the accepted jobs.

During the burst, about two seconds, the limit of the whole cluster is small, so that a few hundred requests
reach it. Afterwards the earlier settings are restored.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

from .context import Context
from .jobs import unique

RPS, BURST = 5, 100
TOLERANCE = 0.05
LANES = 8


def _put(ctx: Context, settings: Dict[str, Any]) -> None:
    """Changes run-time settings and waits until every gateway uses them."""
    answer = ctx.stack.api("PUT", "/config", settings, timeout=10)
    ctx.expect(answer.status == 200, f"PUT /config: {answer.status} {answer.text[:200]}")
    version = answer.json["version"]

    def applied() -> bool:
        answers = [ctx.stack.api("GET", "/config/effective", gateway=n, timeout=5) for n, _ in enumerate(ctx.stack.gateways())]
        return all(answer.json["version"] >= version for answer in answers)

    ctx.poll("every gateway uses the new rate limit", 10.0, applied)


def bounds(last_begin: float, end: float) -> Tuple[float, float]:
    """The fewest and the most jobs that one limit admits, with a tolerance. Seconds since the first request.

    The requests ask for more than the limit admits until the last of them begins. So everything that the limit
    allows up to then is admitted, and nothing more than it allows until the last answer.
    """
    return (BURST + RPS * last_begin) * (1 - TOLERANCE), (BURST + RPS * end) * (1 + TOLERANCE)


def one_limit(ctx: Context) -> None:
    """Sends three times as many jobs as one limit admits at once, over all gateways; red unless the limit was shared."""
    before = ctx.stack.api("GET", "/config", timeout=10).json["settings"]
    tenant, topic = unique("gate"), "gate.burst"
    _put(ctx, {**before, "rate_limit_rps": str(RPS), "rate_limit_burst": str(BURST)})
    try:
        gateways = ctx.stack.gateways()

        begins: List[float] = []

        def send(n: int) -> int:
            begins.append(time.monotonic())
            return ctx.stack.api("POST", "/jobs", {"topic": topic}, gateway=n % len(gateways), tenant=tenant, timeout=10).status

        began = time.monotonic()
        with ThreadPoolExecutor(LANES) as pool:
            answers: List[int] = list(pool.map(send, range(3 * BURST)))
        took = time.monotonic() - began
    finally:
        _put(ctx, before)
    admitted, refused = answers.count(202), answers.count(429)
    expected = BURST + RPS * took
    ctx.note("rate limit", {"sent": len(answers), "admitted": admitted, "refused": refused, "seconds": round(took, 2),
                            "one limit admits": round(expected, 1), "rps": RPS, "burst": BURST})
    try:
        ctx.expect(admitted + refused == len(answers), f"rate limit: other answers than 202 and 429: {sorted(set(answers))}")
        low, high = bounds(max(begins) - began, took)
        ctx.expect(low <= admitted <= high,
                   f"rate limit: both gateways together admitted {admitted} jobs where one global limit admits "
                   f"{expected:.0f}: the limit is not shared")
        ctx.count("rate limit: admitted jobs that exist", _stored(ctx, tenant, topic), admitted)
    finally:
        _clear(ctx, tenant, topic)


def _stored(ctx: Context, tenant: str, topic: str) -> int:
    """The number of the tenant's jobs, counted in the list of jobs."""
    found, cursor = 0, ""
    while True:
        page = ctx.stack.api("GET", f"/jobs?topic={topic}&limit=500{cursor}", tenant=tenant, timeout=10).json
        found += len(page["items"])
        if not page.get("next_cursor"):
            return found
        cursor = f"&cursor={page['next_cursor']}"


def _clear(ctx: Context, tenant: str, topic: str) -> None:
    """Cancels the admitted jobs, because no worker will run them."""
    ask = {"action": "cancel", "filter": {"topic": topic}, "rate_per_s": 2000}
    ctx.stack.api("POST", "/jobs/bulk", ask, tenant=tenant, timeout=10)
