"""Gate 22, restore: the disks of both stores are lost, and a backup brings every job back.

Jobs that had ended keep their end and do not run again; waiting jobs run once, counted by the worker.
NATS comes back empty and is not restored: its messages are published again from Redis. The gate deletes the data of its
stack, so it runs on stacks that were started for gates only.
"""

import json
import os
import subprocess
import urllib.parse
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List, Optional

from ..context import Context
from ..model import CONTAINERS, Control, Gate, Red, Skip
from ..stacks import engine
from ..stacks.base import OUR_SERVICES, Replica

ENDED, WAITING = 20, 60
STORES = ("redis", "nats")


def run(ctx: Context) -> None:
    stack = ctx.stack
    if not stack.ours:
        raise Skip("this gate deletes all data: it runs on a stack of its own only (--up)")
    mark = uuid.uuid4().hex[:6]
    ended_topic, waiting_topic = f"restore-ended-{mark}", f"restore-waiting-{mark}"

    worker = ctx.worker(ended_topic)
    ended = _submit(ctx, ended_topic, ENDED)
    _all_succeeded(ctx, ended)
    if worker:
        worker.stop()
    waiting = _submit(ctx, waiting_topic, WAITING)

    folder = ctx.folder / "backup"
    _backup(ctx, "create", str(folder))
    damage: Optional[Callable[[Path], None]] = ctx.planted.get("damage")
    if damage:
        damage(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    ctx.note("backup", {"bytes": sum(file["bytes"] for file in manifest["files"]), **manifest["counts"]})
    _backup(ctx, "verify", str(folder))
    ctx.say(f"backed up {manifest['counts']['kinds'].get('job', 0)} job records, and verified them")

    ours = [replica for replica in stack.replicas() if replica.service in OUR_SERVICES]
    for replica in ours:
        stack.stop(replica)
    try:
        _lose_disks(ctx)
        restore: Callable[[Context, Path], None] = ctx.planted.get("restore", _restore)
        restore(ctx, folder)
        _records_are_back(ctx, manifest["counts"]["kinds"].get("job", 0))
    finally:
        for replica in ours:
            stack.start(replica)
    ctx.note("ready again after", f"{stack.wait_ready(60):.1f} s")

    if ctx.worker(waiting_topic) is None:
        raise Red("no worker: nothing can show that the jobs run")
    _all_succeeded(ctx, waiting)
    _all_succeeded(ctx, ended)
    runs = [execution.job for execution in ctx.executions(waiting_topic)]
    ctx.count("jobs that waited and ran once after the restore", sum(runs.count(job) == 1 for job in waiting), WAITING)
    before = [execution.job for execution in ctx.executions(ended_topic)]
    ctx.count("jobs that had ended and did not run again", sum(before.count(job) == 1 for job in ended), ENDED)


def _submit(ctx: Context, topic: str, number: int) -> List[str]:
    items = [{"topic": topic, "payload": n, "retry": {"max_attempts": 1}} for n in range(number)]
    answer = ctx.stack.api("POST", "/jobs/batch", {"items": items})
    accepted = [item["job"]["id"] for item in (answer.json or {}).get("items", []) if "job" in item]
    ctx.count(f"submits to {topic.rsplit('-', 1)[0]} accepted", len(accepted), number)
    return accepted


def _all_succeeded(ctx: Context, jobs: List[str]) -> None:
    def ended() -> bool:
        states = [ctx.stack.api("GET", f"/jobs/{job}").json.get("state", "unknown") for job in jobs]
        wrong = {state: states.count(state) for state in set(states) if state != "succeeded"}
        if wrong:
            raise Red(f"of {len(jobs)} jobs these have not succeeded: {wrong}")
        return True

    ctx.poll("the end of all jobs", 90, ended, every=0.5)


def _backup(ctx: Context, *args: str) -> str:
    """`muster backup` on the stack's Redis; the password goes by the environment."""
    place = urllib.parse.urlsplit(ctx.stack.redis_url)
    plain = f"redis://{place.hostname}:{place.port}"
    environment = dict(os.environ, REDIS_URL=plain, REDISCLI_AUTH=urllib.parse.unquote(place.password or ""))
    words = [plain if word == "TARGET" else word for word in args]
    done = subprocess.run([ctx.stack.program("muster"), "backup", *words], env=environment, capture_output=True,
                          text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise Red(f"muster backup {args[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _restore(ctx: Context, folder: Path) -> None:
    said = _backup(ctx, "restore", str(folder), "--to", "TARGET")
    ctx.say(said.strip().splitlines()[0])


def _store_replicas(ctx: Context) -> List[Replica]:
    return [replica for replica in ctx.stack.replicas() if replica.service in STORES]


def _lose_disks(ctx: Context) -> None:
    """Both stores come back with empty volumes."""
    found = engine.inspect([replica.container for replica in _store_replicas(ctx) if replica.container])
    services = [each["Config"]["Labels"]["com.docker.compose.service"] for each in found]
    volumes = [mount["Name"] for each in found for mount in each["Mounts"] if mount["Type"] == "volume"]
    ctx.expect(len(volumes) >= len(STORES), f"Redis and NATS keep no data on volumes: {volumes}")
    engine.docker("rm", "-f", *(each["Id"] for each in found))
    engine.docker("volume", "rm", *volumes)
    ctx.stack.up(services=services)
    ctx.poll("an empty Redis", 60, lambda: ctx.stack.redis("DBSIZE") == "0")
    ctx.note("volumes deleted", len(volumes))


def _records_are_back(ctx: Context, wanted: int) -> None:
    """Reads Redis itself, before any service can write."""
    found, cursor = set(), "0"
    while True:
        cursor, *keys = ctx.stack.redis("SCAN", cursor, "MATCH", "muster:job:*", "COUNT", "1000").split("\n")
        found.update(key for key in keys if key)
        if cursor == "0":
            break
    ctx.note("job records after the restore", f"{len(found)} of {wanted}")
    ctx.expect(len(found) == wanted, f"after the restore Redis holds {len(found)} of {wanted} job records")


@contextmanager
def _dump_beside_the_log(ctx: Context) -> Iterator[None]:
    """A wrong restore that looks obvious: the snapshot is put into the folder of a server with an append-only file."""

    def lay_beside(ctx: Context, folder: Path) -> None:
        redis = next(replica for replica in _store_replicas(ctx) if replica.service == "redis")
        dump = ctx.folder / "dump.rdb"
        dump.write_bytes((folder / "redis.rdb").read_bytes())
        dump.chmod(0o644)
        ctx.stack.stop(redis)
        engine.docker("cp", str(dump), f"{redis.container}:/data/dump.rdb")
        ctx.stack.start(redis)
        ctx.poll("Redis to be healthy", 60, lambda: ctx.stack.redis("PING") == "PONG")

    ctx.planted["restore"] = lay_beside
    yield
    ctx.planted.pop("restore")


@contextmanager
def _truncated(ctx: Context) -> Iterator[None]:
    def cut(folder: Path) -> None:
        file = folder / "redis.rdb"
        os.truncate(file, file.stat().st_size // 2)

    ctx.planted["damage"] = cut
    yield
    ctx.planted.pop("damage")


GATE = Gate(
    number=22,
    name="restore",
    passes_when="the disks of both stores are lost and a backup brings every job back, each to its one end",
    run=run,
    controls=[
        Control("dump beside the log", _dump_beside_the_log, r"Redis holds 0 of \d+ job records", CONTAINERS, inside=True),
        Control("truncated backup", _truncated, r"redis\.rdb is truncated", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    limit_s=240.0,
)
