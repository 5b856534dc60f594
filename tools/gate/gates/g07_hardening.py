"""Gate 7, hardening: containers have no privileges, only the port of the API is open, and no secret is shown.

The gate reads a container's privileges from the kernel (its process's status and mounts), not from the compose file. It
tries ports at this host's outside address. It searches logs, metrics, printed settings and images for the values of the
secrets. The API must refuse requests as docs and contract promise.
"""

import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

from .. import Context, Control, Gate, Replica, Response
from ..jobs import unique
from ..model import CONTAINERS, Skip
from ..plants import override
from ..stacks import engine
from ..stacks.base import OUR_SERVICES, request
from ..stacks.ports import free_ports
from ..stacks.resp import Redis

# The only port that may be reached from outside, and only when MUSTER_BIND opens it.
PUBLIC = {("gateway", "8081/tcp")}
# The paths that need no key.
OPEN = ("/livez", "/readyz", "/", "/openapi.json", "/docs", "/api/v1/status")
CLOSED = ("/api/v1/jobs", "/api/v1/workers", "/api/v1/replicas", "/api/v1/config/effective", "/api/v1/keys", "/api/v1/audit")


def run(ctx: Context) -> None:
    containers_have_no_rights(ctx)
    only_the_api_is_open(ctx)
    stores_want_a_password(ctx)
    no_secret_shows(ctx)
    the_api_refuses_as_promised(ctx)


def containers_have_no_rights(ctx: Context) -> None:
    replicas: List[Replica] = [r for r in ctx.stack.replicas() if r.state == "running"]
    known = {each["Id"]: each for each in ctx.stack.inspected()}
    faults: List[str] = []
    for replica in replicas:
        faults += [f"{replica.name} {fault}" for fault in _rights(replica, known[replica.container or ""])]
    ctx.expect(not faults, "; ".join(faults))
    ctx.count("containers without root, capabilities or a writable root", len(replicas), len(known))


def _rights(replica: Replica, inspected: Dict[str, Any]) -> Iterator[str]:
    try:
        status = Path(f"/proc/{replica.pid}/status").read_text()
        mounts = Path(f"/proc/{replica.pid}/mountinfo").read_text()
    except OSError as unseen:
        raise Skip(f"the process of {replica.name} cannot be read: run the gate as root ({unseen})") from None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if "0" in fields["Uid"].split():
        yield "runs as root (uid 0)"
    if "0" in fields["Gid"].split() or "0" in fields["Groups"].split():
        yield "is in the group root"
    for name in ("CapPrm", "CapEff", "CapBnd"):
        if int(fields[name], 16):
            yield f"has capabilities ({name} {fields[name]})"
            break
    if fields.get("NoNewPrivs") != "1":
        yield "may gain privileges (no-new-privileges is off)"
    root = next((line.split() for line in mounts.splitlines() if line.split()[4] == "/"), None)
    if root is None or "ro" not in root[5].split(","):
        yield "has a writable root file system"
    host = inspected["HostConfig"]
    for name, wrong in (("Privileged", host["Privileged"]), ("PidMode host", host["PidMode"] == "host"),
                        ("NetworkMode host", host["NetworkMode"] == "host"), ("no memory limit", not host["Memory"]),
                        ("the engine's socket", any("docker.sock" in str(m.get("Source")) for m in inspected["Mounts"]))):
        if wrong:
            yield f"has {name}"


def _outside() -> List[str]:
    """The addresses of this host that other hosts can reach."""
    words = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return [word for word in words if not word.startswith(("127.", "::1", "fe80"))]


def only_the_api_is_open(ctx: Context) -> None:
    addresses = _outside()
    private = public = 0
    for each in ctx.stack.inspected():
        name = each["Config"]["Labels"]["com.docker.compose.service"]
        service = name.rstrip("-0123456789")
        for port, bindings in (each["HostConfig"]["PortBindings"] or {}).items():
            for binding in bindings or []:
                if (service, port) in PUBLIC:
                    public += 1
                    continue
                door = f"port {port.split('/')[0]} of {name}"
                ctx.expect(binding["HostIp"] == "127.0.0.1",
                           f"{door} is public: it listens on {binding['HostIp'] or '0.0.0.0'}:{binding['HostPort']}")
                for address in addresses:
                    ctx.expect(not _connects(address, int(binding["HostPort"])),
                               f"{door} answers on {address}:{binding['HostPort']}, outside of loopback")
                private += 1
    ctx.expect(public, "no gateway publishes its API: there is nothing to compare with")
    ctx.count("admin, store and Prometheus ports that only loopback reaches", private, private)
    ctx.note("outside addresses tried", addresses)


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 1.0):
            return True
    except OSError:
        return False


def stores_want_a_password(ctx: Context) -> None:
    if ctx.stack.redis_url:
        naked = "redis://" + ctx.stack.redis_url.rpartition("@")[2]
        for url, whose in ((naked, "nobody's"), (naked.replace("redis://", "redis://:wrong-password@"), "a wrong")):
            try:
                Redis.ask(url, "DBSIZE")
            except OSError as refused:
                ctx.note(f"Redis with {whose} password", str(refused).split(": ", 1)[-1])
            else:
                ctx.expect(False, f"Redis answers with {whose} password")
    if ctx.stack.nats_url:
        host, _, port = ctx.stack.nats_url.rpartition("@")[2].partition(":")
        with socket.create_connection((host, int(port)), 5) as line, line.makefile("rb") as answers:
            line.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            answers.readline()  # INFO
            said = answers.readline().decode(errors="replace").strip()
        ctx.expect(said.startswith("-ERR"), f"NATS answers without credentials: {said}")
        ctx.note("NATS without credentials", said)


def no_secret_shows(ctx: Context) -> None:
    secrets = ctx.stack.secrets()
    ctx.expect(secrets, "no secret of this stack is known, so none can be searched for")
    searched = 0
    for replica in ctx.stack.replicas():
        places = {"log": ctx.stack.logs(replica)}
        if replica.service in OUR_SERVICES and replica.state == "running":
            places["metrics"] = ctx.stack.scrape(replica)
            places["printed settings"] = ctx.stack.inside(replica, "/usr/local/bin/muster-service", "--print-config")[1]
            for path in ("/readyz", "/loops"):
                places[path] = request("GET", f"{replica.admin}{path}", timeout=5).text
            ctx.expect("***" in places["printed settings"] or "redis" in places["printed settings"].lower(),
                       f"{replica.name} prints no settings: {places['printed settings'][:200]}")
        for place, text in places.items():
            searched += 1
            _clean(ctx, secrets, f"the {place} of {replica.name}", text)
    for n, _ in enumerate(ctx.stack.gateways()):
        for path in ("/config/effective", "/doctor", "/whoami", "/replicas"):
            searched += 1
            _clean(ctx, secrets, f"GET {path} of gateway-{n + 1}", ctx.stack.api("GET", path, gateway=n, timeout=10).text)
    for image in sorted({each["Image"] for each in ctx.stack.inspected()}):
        searched += 1
        made = engine.docker("image", "inspect", image) + engine.docker("history", "--no-trunc", image)
        _clean(ctx, secrets, f"the image {image[7:19]}", made)
    ctx.note("secrets searched for", sorted(secrets))
    ctx.count("logs, metrics, settings, answers and images without a secret", searched, searched)


def _clean(ctx: Context, secrets: Dict[str, str], where: str, text: str) -> None:
    for name, value in secrets.items():
        ctx.expect(value not in text, f"{where} shows the secret {name}")


def the_api_refuses_as_promised(ctx: Context) -> None:
    mine, other = unique("gate-a"), unique("gate-b")
    reader = _key(ctx, mine, ["read"])
    stranger = _key(ctx, other, ["submit", "read", "control"])
    job = ctx.stack.api("POST", "/jobs", {"topic": "gate.hardening", "delay_ms": 3_600_000}, tenant=mine).json["id"]
    ctx.defer(lambda: ctx.stack.api("POST", f"/jobs/{job}/cancel", {"reason": "gate"}, tenant=mine, timeout=5))
    cases = 0
    for n, url in enumerate(ctx.stack.gateways()):
        def ask(method: str, path: str, key: str, body: Any = None, n: int = n) -> Response:
            return ctx.stack.api(method, path, body, gateway=n, key=key, timeout=10)

        for path in OPEN:
            cases += 1
            status = request("GET", url + path, timeout=10).status
            ctx.expect(status == 200, f"gateway-{n + 1}: GET {path} without a key: {status}, promised is 200")
        for path in CLOSED:
            cases += 2
            _refused(ctx, n, f"GET {path} without a key", request("GET", url + path, timeout=10), 401, "unauthorized")
            _refused(ctx, n, f"GET {path} with a wrong key", ask("GET", path, "mst_wrong_key"), 401, "unauthorized")
        cases += 6
        _refused(ctx, n, "a submit with a key that may only read", ask("POST", "/jobs", reader, {"topic": "gate.hardening"}),
                 403, "missing_scope", "submit")
        _refused(ctx, n, "the fleet's settings with a tenant's key", ask("GET", "/config/effective", stranger), 403, "missing_scope")
        _refused(ctx, n, "another tenant's job", ask("GET", f"/jobs/{job}", stranger), 404, "not_found")
        _refused(ctx, n, "a cancel of another tenant's job", ask("POST", f"/jobs/{job}/cancel", stranger, {}), 404, "not_found")
        _refused(ctx, n, "a path that there is not", ask("GET", "/no-such-thing", ctx.stack.api_key), 404, "not_found")
        found = ask("GET", f"/jobs/{job}", reader).status
        ctx.expect(found == 200, f"gateway-{n + 1}: a tenant's own job with its own key: {found}, promised is 200")
    ctx.count("answers of the API that are as promised", cases, cases)


def _key(ctx: Context, tenant: str, scopes: List[str]) -> str:
    answer = ctx.stack.api("POST", "/keys", {"name": "gate", "tenant": tenant, "scopes": scopes}, timeout=10)
    ctx.expect(answer.status in (200, 201), f"POST /keys: {answer.status} {answer.text[:200]}")
    ctx.defer(lambda: ctx.stack.api("DELETE", f"/keys/{answer.json['id']}", timeout=5))
    return answer.json.get("secret") or answer.json["key"]


def _refused(ctx: Context, n: int, what: str, answer: Response, status: int, code: str, naming: str = "") -> None:
    found = answer.json.get("code") if isinstance(answer.json, dict) else None
    ctx.expect((answer.status, found) == (status, code),
               f"gateway-{n + 1}: {what}: {answer.status} {found}, promised is {status} {code}")
    ctx.expect(answer.headers.get("content-type", "").startswith("application/problem+json"),
               f"gateway-{n + 1}: {what}: the answer is {answer.headers.get('content-type')}, not a problem document")
    ctx.expect(naming in answer.text, f"gateway-{n + 1}: {what}: the answer does not name {naming!r}")


@contextmanager
def admin_is_public(ctx: Context) -> Iterator[None]:
    """Publishes the admin port on all addresses of this host."""
    with override({"gateway-2": {"ports": [f"0.0.0.0:{free_ports(1)[0]}:9092"]}}, ready=True)(ctx):
        yield


@contextmanager
def key_is_echoed(ctx: Context) -> Iterator[None]:
    """A start script prints its environment. The container is not one of the services, so no other gate turns red."""
    script = 'echo "starting with the key $$MUSTER_API_KEY"; exec /redis_exporter'
    changed = {"entrypoint": ["sh", "-c", script], "environment": {"MUSTER_API_KEY": ctx.stack.api_key}}
    with override({"redis-exporter": changed}, ready=True)(ctx):
        yield


GATE = Gate(
    number=7,
    name="hardening",
    passes_when="non-root, read-only, no capabilities, no public admin or store, no secret shown, 401/403/404 as promised",
    run=run,
    controls=[
        Control("user: root", override({"gateway-2": {"user": "root"}}, ready=True), r"gateway-2 runs as root", CONTAINERS),
        Control("a key echoed", key_is_echoed, r"the log of redis-exporter shows the secret MUSTER_API_KEY", CONTAINERS),
        Control("admin on 0.0.0.0", admin_is_public, r"port 9092 of gateway-2 is public", CONTAINERS),
    ],
    needs=CONTAINERS,
    limit_s=90.0,
    beside=True,
)
