"""Submits jobs as a careful client does, follows them to their end, and counts their executions.

A submit has an idempotency key. It is repeated, also on the other gateway, while the answer is 503, 429 or missing. The
job exists once, however often it was sent.
"""

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional

from .context import Context
from .model import Red

PATIENCE_S = 30.0


def unique(prefix: str) -> str:
    """A name for a topic or tenant that no earlier run has used."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def submit_one(ctx: Context, topic: str, payload: Any = None, gateway: int = 0, tenant: Optional[str] = None,
               **fields: Any) -> str:
    """Submits one job, first to this gateway, and returns its id. Red if no gateway accepts it within 30 s."""
    key, ends, turn, last = uuid.uuid4().hex, time.monotonic() + PATIENCE_S, gateway, "no gateway"
    body = {"topic": topic, "payload": payload, **fields}
    while time.monotonic() < ends:
        gateways = len(ctx.stack.gateways())
        try:
            answer = ctx.stack.api("POST", "/jobs", body, gateway=turn % max(gateways, 1), tenant=tenant,
                                   headers={"Idempotency-Key": key}, timeout=5)
            if answer.status in (200, 202):
                return answer.json["id"]
            last = f"{answer.status} {answer.text[:200]}"
            if answer.status not in (429, 503):
                raise Red(f"gateway {turn % gateways + 1} refused a job of {topic}: {last}")
        except OSError as away:
            last = str(away)
        turn += 1
        time.sleep(0.1)
    raise Red(f"no gateway took a job of {topic} within {PATIENCE_S:.0f} s: {last}")


def submit(ctx: Context, topic: str, count: int, payload: Any = None, tenant: Optional[str] = None,
           lanes: int = 4, **fields: Any) -> List[str]:
    """Submits so many jobs, in turn to all gateways, and returns their ids."""
    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(lambda n: submit_one(ctx, topic, payload, n, tenant, **fields), range(count)))


def ended(ctx: Context, ids: List[str], timeout: float, tenant: Optional[str] = None) -> Dict[str, Dict[str, Any]]:
    """Waits until all of these jobs have ended and returns them by id; red if one has not ended in time."""
    found: Dict[str, Dict[str, Any]] = {}
    ends = time.monotonic() + timeout
    gateways = max(len(ctx.stack.gateways()), 1)
    for turn, job in enumerate(ids):
        while job not in found:
            # Read each job at least once: reading many takes time, which the jobs did not cause.
            left = ends - time.monotonic()
            try:
                path = f"/jobs/{job}?wait_ms={max(1, int(min(left, 2) * 1000))}"
                answer = ctx.stack.api("GET", path, gateway=turn % gateways, tenant=tenant, timeout=5)
                if answer.status == 200 and answer.json["done"]:
                    found[job] = answer.json
                elif answer.status == 404:
                    raise Red(f"gateway {turn % gateways + 1} does not know job {job}, which was accepted")
            except OSError:
                time.sleep(0.1)
            if job not in found:
                turn += 1
                if left <= 0:
                    raise Red(f"{len(found)} of {len(ids)} jobs ended within {timeout:.0f} s; {_stuck(ctx, job, tenant)}")
    return found


def _stuck(ctx: Context, job: str, tenant: Optional[str]) -> str:
    try:
        answer = ctx.stack.api("GET", f"/jobs/{job}", tenant=tenant, timeout=5)
        return f"{job} is {(answer.json or {}).get('state', answer.status)}"
    except OSError as away:
        return f"{job}: {away}"


def succeeded(ctx: Context, what: str, jobs: Dict[str, Dict[str, Any]]) -> None:
    """Notes the final states of the jobs; red unless each job succeeded."""
    states = Counter(job["state"] for job in jobs.values())
    bad = next((job for job in jobs.values() if job["state"] != "succeeded"), None)
    if bad:
        raise Red(f"{what}: {states['succeeded']} of {len(jobs)} jobs succeeded; {bad['id']} ended {bad['state']}: {bad.get('error')}")
    ctx.count(f"{what}: succeeded", states["succeeded"], len(jobs))


def executed_once(ctx: Context, what: str, topic: str, ids: List[str]) -> None:
    """Red unless the workers' log has exactly one execution of each of these jobs."""
    counted = Counter(each.job for each in ctx.executions(topic))
    never = [job for job in ids if not counted[job]]
    often = [job for job in ids if counted[job] > 1]
    if often:
        raise Red(f"{what}: {len(often)} of {len(ids)} jobs were executed more than once by the worker's log;"
                  f" {often[0]} ran {counted[often[0]]} times")
    if never:
        raise Red(f"{what}: {len(never)} of {len(ids)} jobs were never executed by the worker's log, first {never[0]}")
    ctx.count(f"{what}: executed exactly once", sum(counted[job] == 1 for job in ids), len(ids))
