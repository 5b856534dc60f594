"""Gate 2, config: every replica's settings are valid, the stores are set safely, replicas agree.

`--check-config` runs inside each replica's own environment. `doctor` is asked on every gateway. The
effective settings of all replicas of a service must be the same, run-time settings included; what
services share, such as NATS_REPLICAS, must be the same over all of them.
"""

import json
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Tuple

from .. import Context, Control, Gate
from ..model import CONTAINERS
from ..plants import override
from ..publish import request
from ..stacks.base import OUR_SERVICES

# Settings that name or locate a replica, and so differ between replicas.
OWN = {"instance_id", "http_addr", "grpc_addr", "admin_addr", "admin_url", "public_url"}
# Settings that two services may have good reason to set differently.
BY_SERVICE = {"redis_connect_timeout_ms", "redis_response_timeout_ms", "redis_call_timeout_ms", "log", "runtime_threads"}


def run(ctx: Context) -> None:
    replicas = [r for r in ctx.stack.replicas() if r.service in OUR_SERVICES]
    ctx.expect(replicas, "no replica of our services runs")
    fine = 0
    for replica in replicas:
        code, said = ctx.stack.check_config(replica)
        ctx.expect(code == 0, f"{replica.name}: --check-config ended with {code}: {said[-400:]}")
        fine += 1
    ctx.count("replicas whose --check-config is fine", fine, len(replicas))
    doctor(ctx)
    same_settings(ctx, len(replicas))


def doctor(ctx: Context) -> None:
    gateways = ctx.stack.gateways()
    for n, _ in enumerate(gateways):
        answer = ctx.stack.api("GET", "/doctor", gateway=n, timeout=15)
        ctx.expect(answer.status == 200, f"gateway-{n + 1}: GET /doctor: {answer.status} {answer.text[:200]}")
        items: List[Dict[str, str]] = answer.json["items"]
        ctx.expect(items, f"gateway-{n + 1}: doctor looked at nothing")
        errors = [f"{it['check']} at {it['place']}: {it['found']}" for it in items if _fault(it)]
        ctx.expect(not errors, f"doctor on gateway-{n + 1} finds {len(errors)} faults: {'; '.join(errors)}")
        warnings = [f"{it['check']} at {it['place']}: {it['found']}" for it in items if it["level"] == "warn"]
        ctx.note(f"doctor on gateway-{n + 1}", {"checks": len(items), "errors": 0, "warnings": warnings})


def _fault(finding: Dict[str, str]) -> bool:
    """Whether this is an error, or a missing copy of a stream, about which doctor only warns. A single nats-server accepts
    a stream with three copies and keeps one."""
    missing = finding["check"] == "copies" and "copies are in step" in finding["found"]
    return finding["level"] == "error" or (missing and finding["level"] == "warn")


def same_settings(ctx: Context, wanted: int) -> None:
    answer = ctx.poll("every replica has announced its settings", 12.0, lambda: _effective(ctx, wanted))
    told: List[Tuple[str, str, Dict[str, Any]]] = [
        (it["service"], it["instance"], {item["name"]: item.get("value") for item in it["items"]})
        for it in [answer, *answer["others"]]
    ]
    compared = 0
    by_service: Dict[str, Tuple[str, Dict[str, Any]]] = {}
    for service, instance, values in told:
        other, first = by_service.setdefault(service, (instance, values))
        different = sorted(n for n in {**first, **values} if n not in OWN and first.get(n) != values.get(n))
        ctx.expect(not different, f"{instance} and {other} run with different settings: " + "; ".join(
            f"{n} is {values.get(n)!r} and {first.get(n)!r}" for n in different))
        compared += len(values)
    services = list(by_service.values())
    for instance, values in services[1:]:
        other, first = services[0]
        shared = set(first) & set(values) - OWN - BY_SERVICE
        different = sorted(n for n in shared if first[n] != values[n])
        ctx.expect(not different, f"{instance} and {other} disagree about {', '.join(different)}")
    ctx.count("replicas with the same settings", len(told), wanted)
    ctx.note("settings compared", compared)


def _effective(ctx: Context, wanted: int) -> Any:
    answer = ctx.stack.api("GET", "/config/effective", timeout=10)
    ctx.expect(answer.status == 200, f"GET /config/effective: {answer.status} {answer.text[:200]}")
    known = 1 + len(answer.json.get("others", []))
    ctx.expect(known >= wanted, f"gateway-1 knows the settings of {known} of {wanted} replicas")
    return answer.json


@contextmanager
def aof_off(ctx: Context) -> Iterator[None]:
    try:
        ctx.stack.redis("CONFIG", "SET", "appendonly", "no")
        yield
    finally:
        ctx.stack.redis("CONFIG", "SET", "appendonly", "yes")
        ctx.poll("Redis has written its log again", 30.0,
                 lambda: "aof_rewrite_in_progress:0" in ctx.stack.redis("INFO", "persistence"))


@contextmanager
def eviction_on(ctx: Context) -> Iterator[None]:
    before = {name: ctx.stack.redis("CONFIG", "GET", name).splitlines()[-1] for name in ("maxmemory", "maxmemory-policy")}
    try:
        ctx.stack.redis("CONFIG", "SET", "maxmemory", "512mb")
        ctx.stack.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        yield
    finally:
        for name, value in before.items():
            ctx.stack.redis("CONFIG", "SET", name, value)


THREE = {f"{service}{second}": {"environment": {"NATS_REPLICAS": "3"}} for service in OUR_SERVICES for second in ("", "-2")}


@contextmanager
def three_copies(ctx: Context) -> Iterator[None]:
    """Services that want three copies of each stream. Muster never takes a copy away by itself, so this does it."""
    with override(THREE, ready=True)(ctx):
        yield
    url = ctx.stack.nats_url
    for name in request(url, "$JS.API.STREAM.NAMES", b"")["streams"]:
        config = request(url, f"$JS.API.STREAM.INFO.{name}", b"")["config"]
        if config["num_replicas"] != 1:
            told = request(url, f"$JS.API.STREAM.UPDATE.{name}", json.dumps({**config, "num_replicas": 1}).encode())
            ctx.expect("error" not in told, f"NATS does not give {name} one copy again: {told.get('error')}")


ODD = {"scheduler-2": {"environment": {"MUSTER_OUTAGE_WAIT": "45s"}}}

GATE = Gate(
    number=2,
    name="config",
    passes_when="--check-config and doctor are fine and the effective config is equal on all replicas",
    run=run,
    controls=[
        # Without a log Redis does not tell its size, which a dashboard shows.
        Control("AOF off", aof_off, r"doctor .* log at .*appendonly", also=(20,)),
        Control("eviction on", eviction_on, r"doctor .* eviction at .*allkeys-lru"),
        Control("NATS_REPLICAS=3 on one node", three_copies, r"copies at nats .*(of 3 copies|NATS_REPLICAS says 3)", CONTAINERS),
        Control("a replica with other settings", override(ODD, ready=True), r"different settings: outage_wait is", CONTAINERS),
    ],
    limit_s=90.0,
    beside=True,
)
