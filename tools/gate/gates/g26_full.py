"""Gate 26, full: a full store refuses new jobs with a clear error, and loses no job that it has.

Redis is brought to its memory limit by submits alone, under `noeviction`. New jobs must be refused with 503,
Retry-After and a code that the documents name for it, jobs in the workers' hands must keep their attempt and end, and when there is room again all
goes on. The same with the storage of NATS: there a submit may also be accepted as `deferred`, since Redis
holds the job, and a result may wait until there is room, since it travels over a stream; the job in the worker's
hands keeps its attempt until then. No job that was accepted may be missing afterwards.
"""

import os
import time
import uuid
from contextlib import contextmanager
from typing import Iterator, List, Tuple

from .. import Context, Control, Gate
from ..fill import Filler
from ..histories import check
from ..jobs import unique
from ..load import Load
from ..model import CONTAINERS, Red
from ..workers import Worker

# Room for so many bytes more than Redis uses when the gate begins.
ROOM = 6 << 20
FILLER = 100_000
FILL_LIMIT = 400
HELD, HELD_MS = 12, 12_000
FULL_S = 20.0
RATE, WORK_MS = 10.0, 50
END_S = 120.0
# Above what the stream of events reserves (a gibibyte).
NATS_ROOM = "1200MB"
# Of half a mebibyte each: room for the jobs that are to run when it is full.
ROOM_PIECES = 40
# The codes in docs/errors for a full store, and for schedulers that are too far behind.
CODES = ("store_unavailable", "overloaded")


def run(ctx: Context) -> None:
    ctx.note("load average before", os.getloadavg()[0])
    if not ctx.planted.get("nats only"):
        redis_full(ctx)
    if not ctx.planted.get("redis only"):
        nats_full(ctx)


# -- Redis


def redis_full(ctx: Context) -> None:
    topics, held, _ = _busy(ctx, "Redis full")
    policy = ctx.planted.get("policy", "noeviction")
    before = {name: ctx.stack.redis("CONFIG", "GET", name).splitlines()[-1] for name in ("maxmemory", "maxmemory-policy")}
    ctx.defer(lambda: [ctx.stack.redis("CONFIG", "SET", name, value) for name, value in before.items()])
    limit = _used(ctx) + ROOM
    ctx.stack.redis("CONFIG", "SET", "maxmemory-policy", policy)
    ctx.stack.redis("CONFIG", "SET", "maxmemory", str(limit))
    waiting = unique("gate.full.waiting")
    fillers, refusal = _fill(ctx, waiting, 503 if policy == "noeviction" else 0)
    ctx.say(f"Redis is full after {len(fillers)} jobs of {FILLER // 1000} kB: {refusal}")
    ctx.note("Redis full: jobs accepted before", len(fillers))
    if policy == "noeviction":
        _still_run(ctx, "Redis full", held)
    _all_there(ctx, "Redis full", fillers)
    load = Load(ctx, topics, RATE, WORK_MS).start()
    since = time.monotonic()
    while time.monotonic() < since + FULL_S:
        time.sleep(0.2)
    _refused_clearly(ctx, "Redis full", load, since)
    states = _running_jobs(ctx, "Redis full", topics, held)
    ctx.expect(states.count("succeeded") == HELD,
               f"Redis full: {states.count('succeeded')} of {HELD} running jobs could end while it was full: {sorted(set(states))}")
    for name, value in before.items():
        ctx.stack.redis("CONFIG", "SET", name, value)
    _recovers(ctx, "Redis full", load, held)
    _all_there(ctx, "Redis full, afterwards", fillers)
    _cancel(ctx, waiting)


def _used(ctx: Context) -> int:
    info = dict(line.split(":", 1) for line in ctx.stack.redis("INFO", "memory").splitlines() if ":" in line)
    return int(info["used_memory"])


def _fill(ctx: Context, topic: str, wanted: int) -> Tuple[List[str], str]:
    """Submits large jobs without a worker until one is refused; returns the accepted ones and the refusal."""
    accepted: List[str] = []
    for turn in range(FILL_LIMIT):
        body = {"topic": topic, "payload": uuid.uuid4().hex * (FILLER // 32)}
        answer = ctx.stack.api("POST", "/jobs", body, gateway=turn % len(ctx.stack.gateways()), timeout=10)
        if answer.status == 202:
            accepted.append(answer.json["id"])
            # A store that evicts data is found long before the limit of this loop.
            if not wanted and len(accepted) * FILLER > 4 * ROOM:
                return accepted, "nothing was refused"
            continue
        code = (answer.json or {}).get("code")
        ctx.note("the first refusal", {"status": answer.status, "code": code, "detail": (answer.json or {}).get("detail"),
                                       "retry_after": answer.headers.get("retry-after")})
        ctx.expect(answer.status == 503 and answer.headers.get("retry-after"),
                   f"a full store is reported as {answer.status} {code}, not as 503 with Retry-After: {answer.text[:300]}")
        ctx.expect(code == CODES[0] and "full" in str(answer.json.get("detail")),
                   f"a full store is reported as {code}, not as {CODES[0]} with a detail that says so: {answer.text[:300]}")
        return accepted, f"{answer.status} {code}"
    raise Red(f"{FILL_LIMIT} jobs of {FILLER} bytes were accepted and nothing was refused: the store did not get full")


def _all_there(ctx: Context, what: str, ids: List[str]) -> None:
    """A full store must have every job that was accepted."""
    gone = []
    for job in ids:
        answer = ctx.stack.api("GET", f"/jobs/{job}", timeout=10)
        if answer.status == 404:
            gone.append(job)
        elif answer.status != 200:
            raise Red(f"{what}: GET /jobs/{job}: {answer.status} {answer.text[:200]}")
    evicted = next((line.split(":")[1] for line in ctx.stack.redis("INFO", "stats").splitlines() if line.startswith("evicted_keys")), "?")
    ctx.expect(not gone, f"{what}: {len(gone)} of {len(ids)} accepted jobs are gone; Redis evicted {evicted.strip()} keys")
    ctx.note(f"{what}: accepted jobs that are there", f"{len(ids)} of {len(ids)}")


# -- NATS


def nats_full(ctx: Context) -> None:
    """NATS starts again with little storage, and a stream of the gate takes what is left of it."""
    small = {"services": {"nats": {"environment": {"NATS_STORAGE": NATS_ROOM}}}}
    ctx.defer(lambda: (ctx.stack.up(services=["nats"]), ctx.stack.wait_ready(60)))
    ctx.stack.up(overrides=[small], services=["nats"])
    ctx.stack.wait_ready(60)
    filler = Filler(ctx.stack.nats_url)
    ctx.defer(filler.empty)
    # Filling takes longer than a job: nearly all of it comes first, so that the jobs run when it is full.
    ctx.note("NATS full: bytes that filled it", filler.fill())
    filler.make_room(ROOM_PIECES)
    topics, held, workers = _busy(ctx, "NATS full")
    filler.fill()
    _still_run(ctx, "NATS full", held)
    ctx.say("NATS is full")
    if "left" in ctx.planted:
        ctx.planted["left"] += topics
        for worker in workers:
            worker.kill9()
    load = Load(ctx, topics, RATE, WORK_MS).start()
    since = time.monotonic()
    while time.monotonic() < since + FULL_S:
        time.sleep(0.2)
    _refused_clearly(ctx, "NATS full", load, since)
    states = _running_jobs(ctx, "NATS full", topics, held)
    # A result travels over a stream, and a full one takes none: it waits, and the worker keeps the job. Whatever the
    # state is, it is the first attempt's; `_recovers` checks that it ends in that one.
    lost = [state for state in states if state not in ("running", "succeeded")]
    ctx.expect(len(states) == HELD and not lost, f"NATS full: {len(lost)} of {HELD} running jobs lost their attempt while it was full: {sorted(set(lost))}")
    ctx.say("NATS has room again")
    filler.empty()
    _recovers(ctx, "NATS full", load, held)


# -- both


def _busy(ctx: Context, what: str) -> Tuple[List[str], Load, List[Worker]]:
    """Starts workers that hold jobs; returns the topics, the jobs and the workers."""
    topics = [unique("gate.full.http"), unique("gate.full.nats")]
    workers = [ctx.worker(topics[0], threads=12), ctx.worker(topics[1], "nats", threads=16, builtin="drill")]
    held = Load(ctx, topics, 20.0, HELD_MS, limit=HELD).start()
    held.finish(30)
    ctx.poll(f"{what}: the workers run {HELD} jobs", 30.0,
             lambda: {run.job for topic in topics for run in ctx.executions(topic)} >= set(held.ids()))
    return topics, held, [worker for worker in workers if worker]


def _still_run(ctx: Context, what: str, held: Load) -> None:
    """Red unless the jobs in the workers' hands run at the moment when the store has become full."""
    states = [ctx.stack.api("GET", f"/jobs/{job}", timeout=10).json["state"] for job in held.ids()]
    ended = HELD - states.count("running")
    ctx.expect(not ended, f"{what}: {ended} of {HELD} jobs had ended before it was full, so nothing is proven about them: {sorted(set(states))}")


def _running_jobs(ctx: Context, what: str, topics: List[str], held: Load) -> List[str]:
    """The states of the jobs in the workers' hands, while the store is full; red when one was tried again."""
    ran = {run.job for topic in topics for run in ctx.executions(topic)}
    ctx.count(f"{what}: jobs in the workers' hands", len(ran & set(held.ids())), HELD)
    jobs = [ctx.stack.api("GET", f"/jobs/{job}", timeout=10).json for job in held.ids()]
    states = [job["state"] for job in jobs]
    ctx.note(f"{what}: states of running jobs at the end of it", {s: states.count(s) for s in sorted(set(states))})
    again = [job["id"] for job in jobs if job["attempt"] != 1]
    ctx.expect(not again, f"{what}: {len(again)} of {HELD} running jobs were tried again while it was full, first {again[:1]}")
    return states


def _refused_clearly(ctx: Context, what: str, load: Load, since: float) -> None:
    answers = load.since(since)
    ctx.expect(answers, f"{what}: no request was answered meanwhile")
    ctx.note(f"{what}: answers meanwhile", Load.summary(answers))
    wrong = [a for a in answers if a.status not in (200, 202, 503)]
    ctx.expect(not wrong, f"{what}: submits got something else than 202 or 503: {Load.summary(wrong)}")
    ctx.expect(not [a for a in answers if a.status == 503 and not a.retry_after], f"{what}: 503 came without Retry-After")
    unclear = [a for a in answers if a.status == 503 and a.code not in CODES]
    ctx.expect(not unclear, f"{what}: 503 came with another code than {' or '.join(CODES)}: {Load.summary(unclear)}")
    ctx.expect([a for a in answers if a.status == 503 or a.deferred], f"{what}: nothing was refused or deferred: it is not full")


def _recovers(ctx: Context, what: str, load: Load, held: Load) -> None:
    began, accepted = time.monotonic(), len(load.accepted)
    load.reach(accepted + 40, 60)
    ctx.note(f"{what}: 40 more jobs accepted after there was room, s", round(time.monotonic() - began, 1))
    load.stop()
    check(ctx, f"{what}, running jobs", held, END_S)
    check(ctx, f"{what}, load", load, END_S)
    ctx.stack.wait_ready(60)


def _cancel(ctx: Context, topic: str) -> None:
    ctx.stack.api("POST", "/jobs/bulk", {"action": "cancel", "filter": {"topic": topic}, "rate_per_s": 2000}, timeout=10)


@contextmanager
def _evicts(ctx: Context) -> Iterator[None]:
    ctx.planted.update({"policy": "allkeys-lru", "redis only": True})
    yield
    ctx.planted.clear()


@contextmanager
def _workers_die(ctx: Context) -> Iterator[None]:
    """The workers do not outlive a full NATS, so the jobs in their hands lose their attempt."""
    ctx.planted.update({"nats only": True, "left": []})
    try:
        yield
    finally:
        for topic in ctx.planted["left"]:
            _cancel(ctx, topic)
        ctx.planted.clear()


GATE = Gate(
    number=26,
    name="full",
    passes_when="Redis at its memory limit, NATS storage full: refused with a clear code, running jobs end, it recovers",
    run=run,
    controls=[
        Control("eviction allowed", _evicts, r"accepted jobs are gone; Redis evicted \d+ keys", CONTAINERS, inside=True),
        Control("workers that die when NATS is full", _workers_die,
                r"NATS full: \d+ of 12 running jobs (were tried again|lost their attempt) while it was full", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    limit_s=600.0,
)
