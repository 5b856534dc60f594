"""The checker: is the history of every accepted job valid, and does it agree with the workers' own log?

For each job: it exists; it has ended; its history has one end, the last step; it was started at most
`max_attempts` times; no attempt ran twice; every execution has a recorded start; and the worker's log contains the
attempt that succeeded.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Collection, Dict, List, NamedTuple, Sequence

from .context import Context
from .jobs import ended
from .load import Load
from .model import Red
from .workers import Execution

ENDS = {"succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "quarantined"}
MAX_ATTEMPTS = 5
# The number of jobs that are read in parallel.
LANES = 6


class History(NamedTuple):
    """What the API reports about a job."""

    job: str
    transitions: List[Dict[str, Any]]

    @property
    def ends(self) -> List[str]:
        """Every recorded end."""
        return [step["state"] for step in self.transitions if step["state"] in ENDS]

    @property
    def starts(self) -> List[Dict[str, Any]]:
        """Every recorded start."""
        return [step for step in self.transitions if step["event"] == "start"]


def check(ctx: Context, what: str, load: Load, timeout: float, dead: Collection[str] = (), forgiven: int = 0) -> None:
    """Waits for the end of every job of the load and checks its history; red with the first wrong job.

    `dead` names killed workers: only their jobs may have been tried again. `forgiven` jobs may have run once more than
    is recorded: a killed Redis primary loses the writes of its last milliseconds.
    """
    ids = load.ids()
    ctx.expect(ids, f"{what}: 0 of 0 proves nothing")
    _keys(what, load)
    with ThreadPoolExecutor(LANES) as pool:
        parts = list(pool.map(lambda part: ended(ctx, part, timeout), [ids[n::LANES] for n in range(min(LANES, len(ids)))]))
    jobs = {job: each for part in parts for job, each in part.items()}
    states = Counter(job["state"] for job in jobs.values())
    bad = next((job for job in jobs.values() if job["state"] != "succeeded"), None)
    if bad:
        raise Red(f"{what}: {states['succeeded']} of {len(ids)} jobs succeeded; {bad['id']} ended {bad['state']}: {bad.get('error')}")
    with ThreadPoolExecutor(LANES) as pool:
        histories = list(pool.map(lambda job: _history(ctx, job), ids))
    runs: Dict[str, List[Execution]] = {job: [] for job in ids}
    for topic in load.topics:
        for run in ctx.executions(topic):
            if run.job in runs:
                runs[run.job].append(run)
    over = [fault for each in histories for fault in _faults(each, runs[each.job])]
    forgivable = [fault for fault in over if fault.startswith("ran once more")]
    serious = [fault for fault in over if fault not in forgivable]
    if serious or len(forgivable) > forgiven:
        faults = serious or forgivable
        raise Red(f"{what}: {len(faults)} of {len(ids)} histories do not hold; first: {faults[0]}")
    vain = _in_vain(histories, dead)
    if vain:
        raise Red(f"{what}: {len(vain)} of {len(ids)} jobs were tried again although their worker lived: {vain[0]}")
    again = sum(len(each.starts) > 1 for each in histories)
    ctx.note(f"{what}: histories that hold", f"{len(ids)} of {len(ids)}")
    ctx.note(f"{what}: executions by the workers' log", sum(map(len, runs.values())))
    ctx.note(f"{what}: tried again after the death of their worker", again)
    if forgivable:
        ctx.note(f"{what}: ran once more than recorded, forgiven", len(forgivable))


def _keys(what: str, load: Load) -> None:
    """Red if an idempotency key created more than one job."""
    by_key: Dict[str, set] = {}
    for each in load.accepted:
        by_key.setdefault(each.key, set()).add(each.job)
    split = [key for key, jobs in by_key.items() if len(jobs) > 1]
    if split:
        raise Red(f"{what}: {len(split)} idempotency keys made more than one job")


def _history(ctx: Context, job: str) -> History:
    def ask() -> Any:
        answer = ctx.stack.api("GET", f"/jobs/{job}/history", timeout=10)
        if answer.status != 200:
            raise Red(f"history of {job}: {answer.status} {answer.text[:200]}")
        return answer.json

    return History(job, ctx.poll(f"the history of {job}", 15.0, ask)["transitions"])


def _faults(history: History, runs: Sequence[Execution]) -> List[str]:
    """What is wrong with one job."""
    job, starts, found = history.job, history.starts, []
    steps = " → ".join(step["event"] for step in history.transitions)
    if len(history.ends) != 1 or history.transitions[-1]["state"] not in ENDS:
        found.append(f"{job} ended {len(history.ends)} times: {steps}")
    if len(starts) > MAX_ATTEMPTS:
        found.append(f"{job} was started {len(starts)} times, {MAX_ATTEMPTS} are allowed: {steps}")
    fences = Counter(run.fence for run in runs)
    twice = [fence for fence, count in fences.items() if count > 1]
    if twice:
        found.append(f"{job} was executed {fences[twice[0]]} times in one attempt, by the worker's log")
    elif len(runs) > len(starts):
        found.append(f"ran once more than recorded: {job} was executed {len(runs)} times and started {len(starts)} times: {steps}")
    if starts and starts[-1]["attempt"] not in {run.attempt for run in runs}:
        found.append(f"{job} succeeded in attempt {starts[-1]['attempt']}, which was never executed by the worker's log: {steps}")
    if not starts:
        found.append(f"{job} succeeded without a start: {steps}")
    return found


def _in_vain(histories: Sequence[History], dead: Collection[str]) -> List[str]:
    """Jobs with a second attempt although the worker of the first attempt was alive."""
    found = []
    for each in histories:
        # An attempt that was given back does not count as tried.
        after = [(step, following["event"]) for step, following in zip(each.transitions, each.transitions[1:])]
        tried = [step for step, following in after if step["event"] == "start" and following != "release"]
        for start in tried[:-1]:
            if start.get("note") not in dead:
                steps = " → ".join(f"{step['event']} {step.get('note', '')}".strip() for step in each.transitions)
                found.append(f"{each.job}: {steps}")
                break
    return found
