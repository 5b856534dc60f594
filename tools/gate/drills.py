"""Real faults, each with the alerts that must fire for it.

A drill is a context manager: the fault exists inside the block and is repaired after it. Each fault can happen in
production: killed replicas, a lock held by a hanging process, jobs without workers, junk on the bus, manual changes in
Redis, a store that does not answer. Drills of one batch do not disturb each other and are planted together, because
some gauges are measured only once a minute.
"""

import datetime
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Tuple

from .certificate import Certificate, probed
from .context import Context
from .jobs import ended, submit, submit_one, unique
from .leaders import SHARDS
from .publish import last, publish, purge
from .runs import runs_ended, runs_go_on, started, stored
from .stacks import engine
from .stacks.base import Replica

Fault = Callable[[Context], ContextManager[Any]]
RECONCILER = "muster:reconciler:default"
RUN_SHARDS = "muster:workflow-engine:reconciler:"
# Longer than a replica needs to notice that a lock is lost: it renews each every 5 s.
TIMER_MS = 8000
# A consumer of the schedulers has at most 4,096 unacknowledged messages; the others stay pending.
PILE = 8_000


class Drill(NamedTuple):
    """A fault, and the alerts that must fire during it and resolve after it. A `standing` fault already exists
    when its drill begins."""

    name: str
    fault: Fault
    alerts: Tuple[str, ...]
    standing: bool = False


@contextmanager
def no_scheduler(ctx: Context) -> Iterator[None]:
    """Every scheduler crashes and stays down while a client submits."""
    ids: List[str] = []
    with held_down(ctx, ctx.stack.replicas("scheduler")):
        ids += submit(ctx, unique("gate.alerts"), 3)
        yield
    cancel(ctx, ids)


@contextmanager
def one_gateway_less(ctx: Context) -> Iterator[None]:
    """A gateway crashes and stays down."""
    with held_down(ctx, ctx.stack.replicas("gateway")[-1:]):
        yield


@contextmanager
def held_down(ctx: Context, replicas: List[Replica]) -> Iterator[None]:
    """Kills these replicas and starts them again when the block ends."""
    try:
        for replica in replicas:
            ctx.stack.kill9(replica, hold=True)
        yield
    finally:
        for replica in replicas:
            ctx.stack.start(replica)
        ctx.stack.wait_ready(60)


@contextmanager
def lock_held_by_a_hanging_process(ctx: Context) -> Iterator[None]:
    """A process that does nothing holds the reconciler's lock, so due jobs are not checked."""
    held = ctx.stack.redis("GET", RECONCILER)
    fence = int(held.rpartition(":")[2] or 1) + 1
    # Delays that end while no reconciler runs.
    ids = submit(ctx, unique("gate.alerts"), 5, delay_ms=1000)
    try:
        ctx.stack.redis("SET", RECONCILER, f"hanging~{uuid.uuid4().hex[:8]}:{fence}", "PX", "120000")
        yield
    finally:
        ctx.stack.redis("DEL", RECONCILER)
        cancel(ctx, ids)


@contextmanager
def shards_held(ctx: Context) -> Iterator[None]:
    """A process that does nothing holds the locks of all shards of runs, so no run goes on by itself."""
    locks = [f"{RUN_SHARDS}{shard}" for shard in SHARDS]
    fences = [int(ctx.stack.redis("GET", lock).rpartition(":")[2] or 1) for lock in locks]
    try:
        for lock in locks:
            ctx.stack.redis("SET", lock, f"hanging~{uuid.uuid4().hex[:8]}:{max(fences) + 1}", "PX", "120000")
        yield
    finally:
        for lock in locks:
            ctx.stack.redis("DEL", lock)


@contextmanager
def shards_held_by_a_hanging_process(ctx: Context) -> Iterator[None]:
    """Runs wait for timers that end while no replica owns their shards."""
    ids = started(ctx, delay(ctx, TIMER_MS), 5)
    runs_go_on(ctx, ids)
    with shards_held(ctx):
        yield
    runs_ended(ctx, ids, 60)


@contextmanager
def timers_that_waited(ctx: Context) -> Iterator[None]:
    """Timers of runs ended while no replica owned their shards, and act late."""
    # The replica that has each shard owns the same shard afterwards: its histogram exists before it grows.
    runs_ended(ctx, started(ctx, delay(ctx, 100), 10), 30)
    time.sleep(3)  # Prometheus has to see the histogram.
    ids = started(ctx, delay(ctx, TIMER_MS), 10)
    runs_go_on(ctx, ids)
    with shards_held(ctx):
        time.sleep(TIMER_MS / 1000 + 6)  # This wait is the fault.
    runs_ended(ctx, ids, 60)
    yield


def delay(ctx: Context, ms: int) -> str:
    """Stores a workflow that waits, and returns its name."""
    return stored(ctx, unique("gate-delay"), [{"id": "wait", "delay": {"ms": ms}}])


@contextmanager
def jobs_without_a_worker(ctx: Context) -> Iterator[None]:
    """Jobs wait without a worker for their topic; a worker starts at the end."""
    topic = unique("gate.alerts")
    ids = submit(ctx, topic, 5)
    try:
        yield
    finally:
        ctx.worker(topic)
        ended(ctx, ids, 30)


@contextmanager
def jobs_that_waited_long(ctx: Context) -> Iterator[None]:
    """The topic's worker was away for a while, and its jobs waited."""
    topic = unique("gate.alerts")
    worker = ctx.worker(topic)
    ended(ctx, submit(ctx, topic, 1), 20)
    time.sleep(3)  # Prometheus has to see the histogram before it grows.
    if worker:
        worker.stop()
    waiting = submit(ctx, topic, 20)
    time.sleep(6)  # This wait is the fault.
    ctx.worker(topic)
    ended(ctx, waiting, 30)
    yield


@contextmanager
def jobs_that_expire(ctx: Context) -> Iterator[None]:
    """Jobs that no worker started in time become dead letters."""
    ids = submit(ctx, unique("gate.alerts"), 25, start_within_ms=1000)
    ended(ctx, ids, 30)
    yield


@contextmanager
def junk_on_the_bus(ctx: Context) -> Iterator[None]:
    """A program publishes invalid messages on a subject of Muster."""
    publish(ctx.stack.nats_url, "sys.job.submit", [b"\xff\xfe junk of the gate"] * 3)
    yield


@contextmanager
def damaged_record(ctx: Context) -> Iterator[None]:
    """A manual change in Redis has damaged a job's record; a client reads it."""
    job = submit_one(ctx, unique("gate.alerts"), delay_ms=600_000)
    key = f"muster:job:{job}"
    fields = ctx.stack.redis("HKEYS", key).splitlines()
    ctx.expect(fields, f"{key} has no fields: the drill does not know this layout")
    try:
        for field in fields:
            ctx.stack.redis("HSET", key, field, "damaged")
        for _ in range(3):
            ctx.stack.api("GET", f"/jobs/{job}")
        yield
    finally:
        ctx.stack.redis("DEL", key)


@contextmanager
def homes_removed(ctx: Context) -> Iterator[None]:
    """A manual change in Redis has removed the homes of active jobs; the scrub restores them."""
    ids = submit(ctx, unique("gate.alerts"), 4, delay_ms=600_000)
    for shard in SHARDS:
        ctx.stack.redis("DEL", f"muster:due:job:{shard}")
    try:
        yield
    finally:
        cancel(ctx, ids)


def cancel(ctx: Context, ids: List[str]) -> None:
    """Cancels the jobs of a drill, so that the next drill begins on a quiet stack."""
    for job in ids:
        ctx.stack.api("POST", f"/jobs/{job}/cancel", {})


@contextmanager
def reports_under_an_old_fence(ctx: Context) -> Iterator[None]:
    """A worker that has lost its lease keeps reporting under its old fence."""
    topic = unique("gate.alerts")
    submit_one(ctx, topic, retry={"max_attempts": 2, "backoff": {"initial_ms": 100, "max_ms": 100}})
    first = lease(ctx, topic, "gate-slow", 5000)
    second = ctx.poll("another worker has the job", 30.0, lambda: lease(ctx, topic, "gate-quick", 30_000, once=True))
    for _ in range(30):
        report(ctx, "gate-slow", first)
    try:
        yield
    finally:
        report(ctx, "gate-quick", second)


def lease(ctx: Context, topic: str, worker: str, lease_ms: int, once: bool = False) -> Dict[str, Any]:
    """Leases a job of the topic for this worker; with `once` the answer may be empty."""
    ask = {"worker_id": worker, "topics": [topic], "max": 1, "wait_ms": 1000, "lease_ms": lease_ms}

    def asked() -> Dict[str, Any]:
        answer = ctx.stack.api("POST", "/worker/lease", {**ask, "request_id": uuid.uuid4().hex})
        ctx.expect(answer.status == 200, f"lease: {answer.status} {answer.text[:200]}")
        return answer.json["items"][0] if answer.json["items"] else {}

    return asked() if once else ctx.poll(f"a job of {topic} is leased", 20.0, asked)


def report(ctx: Context, worker: str, job: Dict[str, Any]) -> None:
    """Reports success under the fence of the lease."""
    item = {"job_id": job["job_id"], "fence": job["fence"], "result": None}
    ctx.stack.api("POST", "/worker/complete", {"worker_id": worker, "items": [item]})


@contextmanager
def exporter_dead(ctx: Context) -> Iterator[None]:
    """redis_exporter is down, so the alerts on its series see nothing."""
    exporter = ctx.stack.replica("redis-exporter")
    try:
        ctx.stack.stop(exporter)
        yield
    finally:
        ctx.stack.start(exporter)


@contextmanager
def redis_misconfigured(ctx: Context) -> Iterator[None]:
    """An operator has disabled the append-only file and allowed eviction."""
    with redis_settings(ctx, {"appendonly": "no", "maxmemory-policy": "allkeys-lru"}):
        yield


@contextmanager
def redis_nearly_full(ctx: Context) -> Iterator[None]:
    """Redis uses nine tenths of its memory limit. It refuses writes at the limit, and evicts nothing."""
    lines = ctx.stack.redis("INFO", "memory").splitlines()
    used = int(next(line.split(":")[1] for line in lines if line.startswith("used_memory:")))
    with redis_settings(ctx, {"maxmemory": str(used * 10 // 9)}):
        yield


@contextmanager
def redis_settings(ctx: Context, settings: Dict[str, str]) -> Iterator[None]:
    """Changes these settings of Redis inside the block."""
    before = {name: ctx.stack.redis("CONFIG", "GET", name).splitlines()[1] for name in settings}
    try:
        for name, value in settings.items():
            ctx.stack.redis("CONFIG", "SET", name, value)
        yield
    finally:
        for name, value in before.items():
            ctx.stack.redis("CONFIG", "SET", name, value)


@contextmanager
def schedulers_without_cpu(ctx: Context) -> Iterator[None]:
    """The schedulers get a hundredth of a core, until a tick of a loop has exceeded its budget."""
    schedulers = ctx.stack.replicas("scheduler")
    for _ in range(4):
        limits = {r.container: engine.inspect([r.container])[0]["HostConfig"]["NanoCpus"] for r in schedulers}
        try:
            for container in limits:
                engine.docker("update", "--cpus", "0.01", container)
            time.sleep(30)  # This wait is the fault.
        finally:
            for container, limit in limits.items():
                engine.docker("update", "--cpus", str(limit / 1e9), container)
        ctx.stack.wait_ready(60)
        if any('outcome="overrun"' in ctx.stack.scrape(scheduler) for scheduler in schedulers):
            break
    yield


@contextmanager
def nats_node_down(ctx: Context) -> Iterator[None]:
    """One of three NATS nodes freezes: its copies of the streams are out of step."""
    node = ctx.stack.replicas("nats")[-1]
    try:
        ctx.stack.pause(node)
        yield
    finally:
        ctx.stack.unpause(node)


@contextmanager
def key_that_expires(ctx: Context) -> Iterator[None]:
    """An API key expires tomorrow; it is removed at the end."""
    tomorrow = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    asked = {"name": "gate-alerts", "scopes": ["read"], "expires_at": tomorrow.strftime("%Y-%m-%dT%H:%M:%SZ")}
    answer = ctx.stack.api("POST", "/keys", asked)
    ctx.expect(answer.status in (200, 201), f"POST /keys: {answer.status} {answer.text[:300]}")
    try:
        yield
    finally:
        ctx.stack.api("DELETE", f"/keys/{answer.json['id']}")


@contextmanager
def audit_entry_removed(ctx: Context) -> Iterator[None]:
    """A manual change in Redis has removed an entry from the middle of the audit log."""
    for n in range(4):
        ctx.stack.api("PUT", f"/topics/gate.audit-{n}", {})
    entries = ctx.stack.redis("XRANGE", "muster:audit", "-", "+").splitlines()
    ids = [line for line in entries if line.replace("-", "").isdigit() and "-" in line and len(line) > 14]
    ctx.expect(len(ids) >= 3, f"the audit log has {len(ids)} entries, the drill needs 3")
    ctx.stack.redis("XDEL", "muster:audit", ids[-2])
    yield
    # The gauge covers the newest 500 entries.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: ctx.stack.api("PUT", f"/topics/gate.audit-{n % 4}", {}), range(520)))


@contextmanager
def no_backup(ctx: Context) -> Iterator[None]:
    """There is no backup, or its trace is gone; one is made at the end."""
    ctx.stack.redis("DEL", "muster:meta:backup")
    yield
    ctx.stack.muster("backup", "create", str(ctx.folder / "backup"), "--from", ctx.stack.redis_url)


@contextmanager
def storage_of_nats_fills(ctx: Context) -> Iterator[None]:
    """A program fills a stream; the stream is purged at the end."""
    publish(ctx.stack.nats_url, "sys.workflow.event", [b"x" * 900_000] * 60)
    try:
        yield
    finally:
        purge(ctx.stack.nats_url, "MUSTER_EVENTS")


@contextmanager
def redis_away(ctx: Context) -> Iterator[None]:
    """Redis does not answer, clients keep sending requests, and messages pile up on the bus: the same submit, more often
    than the schedulers can hold unacknowledged. The repeated submits change nothing."""
    nodes = ctx.stack.replicas("redis")
    job = submit_one(ctx, unique("gate.alerts"), delay_ms=600_000)
    message = last(ctx.stack.nats_url, "MUSTER_SYS", "sys.job.submit")
    try:
        for node in nodes:
            ctx.stack.pause(node)
        publish(ctx.stack.nats_url, "sys.job.submit", [message] * PILE)
        for _ in range(5):
            for n, _url in enumerate(ctx.stack.gateways()):
                try:
                    ctx.stack.api("POST", "/jobs", {"topic": "gate.alerts"}, gateway=n, timeout=5)
                except OSError:
                    pass
        yield
    finally:
        for node in nodes:
            ctx.stack.unpause(node)
        ctx.stack.wait_ready(60)
        cancel(ctx, [job])


@contextmanager
def certificate_that_ends(ctx: Context) -> Iterator[None]:
    """A certificate expires tomorrow; it is renewed at the end."""
    certificate = Certificate(ctx)
    probed(ctx, certificate, ctx.folder / "drill" / "tls")
    yield
    certificate.renew(365)


BATCHES: List[List[Drill]] = [
    [
        Drill("Redis without a log, with eviction", redis_misconfigured, ("MusterRedisAofOff", "MusterRedisEvicts")),
        Drill("a key that expires tomorrow", key_that_expires, ("MusterKeyExpiring",)),
        Drill("an entry of the audit log removed", audit_entry_removed, ("MusterAuditChainBroken",)),
        Drill("no backup", no_backup, ("MusterBackupTooOld",), standing=True),
        Drill("jobs without a worker", jobs_without_a_worker, ("MusterOldestJobTooOld", "MusterRunnableWithoutWorkers")),
        Drill("a certificate that ends tomorrow", certificate_that_ends, ("MusterCertificateExpiring",)),
        Drill("NATS storage fills", storage_of_nats_fills, ("MusterNatsStorageNearFull",)),
    ],
    [
        Drill("Redis nearly full", redis_nearly_full, ("MusterRedisMemoryNearFull",)),
        Drill("jobs that waited long", jobs_that_waited_long, ("MusterWaitP99High",)),
        Drill("jobs that expire", jobs_that_expire, ("MusterDeadLettersRising",)),
        Drill("junk on the bus", junk_on_the_bus, ("MusterUnreadableMessages",)),
        Drill("a damaged record", damaged_record, ("MusterUnreadableRecords",)),
        Drill("reports under an old fence", reports_under_an_old_fence, ("MusterStaleWritesRising",)),
        Drill("homes removed", homes_removed, ("MusterConsistencyGap",)),
    ],
    [
        Drill("a gateway less", one_gateway_less, ("MusterReplicasBelowWanted",)),
        Drill("redis_exporter dead", exporter_dead, ("MusterSeriesMissing",)),
    ],
    [Drill("the reconciler's lock held by a hanging process", lock_held_by_a_hanging_process,
           ("MusterLeaseLost", "MusterOverdueJobs", "MusterLeaderMissing"))],
    [Drill("the shards of runs held by a hanging process", shards_held_by_a_hanging_process,
           ("MusterRunShardsUnowned", "MusterOverdueRuns"))],
    [Drill("timers of runs that waited", timers_that_waited, ("MusterRunTimersLate",))],
    [Drill("no scheduler", no_scheduler,
           ("MusterServiceDown", "MusterLeaderMissing", "MusterSeriesMissing", "MusterSubmitsLate"))],
    [Drill("schedulers without CPU", schedulers_without_cpu, ("MusterLoopOverruns",))],
    [Drill("Redis away", redis_away, ("MusterStoreFaults", "MusterConsumerStuck"))],
]
# Drills that need three NATS nodes: the cluster overlay.
CLUSTER: List[List[Drill]] = [[Drill("a NATS node down", nats_node_down, ("MusterNatsReplicasLagging",))]]


def batches(ctx: Context) -> List[List[Drill]]:
    """The drills that this stack can run."""
    return BATCHES + (CLUSTER if len(ctx.stack.replicas("nats")) >= 3 else [])
