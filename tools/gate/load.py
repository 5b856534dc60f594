"""A steady load with a ledger: every accepted job, and every answer until it was accepted.

Like a careful client, the load sends each job with an idempotency key, and repeats it on the next gateway until one
accepts it. histories.py checks the ledger afterwards. A connection that could not be opened is counted separately from
one that was cut after the request was sent: the first one carried no request.
"""

import http.client
import json
import socket
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from .context import Context
from .model import Red

UNREACHED, CUT, NOWHERE = "not reached", "cut off", "no gateway reached"


class Answer(NamedTuple):
    """The result of one try. `status` is 0 without an answer; `code` is then UNREACHED, CUT, or NOWHERE after UNREACHED
    from every gateway."""

    at: float
    seconds: float
    status: int
    code: str
    retry_after: Optional[str]
    deferred: bool
    gateway: str


class Submitted(NamedTuple):
    """A job that was accepted."""

    job: str
    topic: str
    key: str
    at: float


class Load:
    """Submits jobs until it is stopped. Start it by `Load(...).start()`; the end of the context also stops it."""

    def __init__(self, ctx: Context, topics: Sequence[str], rate: float = 20.0, ms: int = 50, lanes: int = 4,
                 limit: Optional[int] = None, addresses: Optional[Callable[[], List[str]]] = None,
                 **fields: Any) -> None:
        self.ctx, self.topics, self.rate, self.ms, self.limit, self.fields = ctx, list(topics), rate, ms, limit, fields
        self.accepted: List[Submitted] = []
        self.answers: List[Answer] = []
        self.unresolved: List[str] = []
        self._addresses = addresses or ctx.stack.gateways
        self._lock = threading.Lock()
        self._begun = 0
        self._next = 0.0
        self._stopping = threading.Event()
        self._gives_up = float("inf")
        self._lanes = [threading.Thread(target=self._lane, args=(n,), daemon=True) for n in range(lanes)]

    def start(self) -> "Load":
        """Begins."""
        self._next = time.monotonic()
        for lane in self._lanes:
            lane.start()
        self.ctx.defer(self._halt)
        return self

    def stop(self, patience: float = 60.0) -> None:
        """Submits no new jobs and waits until each job under way is accepted. Red if one is not accepted in time."""
        self._gives_up = time.monotonic() + patience
        self._stopping.set()
        self._join(patience)
        if self.unresolved:
            raise Red(f"{len(self.unresolved)} submits were repeated for {patience:.0f} s and never accepted; "
                      f"the last answers: {self.summary(self.answers[-20:])}")

    def reach(self, count: int, timeout: float) -> None:
        """Waits until so many jobs are accepted."""
        self.ctx.poll(f"{count} accepted jobs ({len(self.accepted)} so far)", timeout, lambda: len(self.accepted) >= count, 0.05)

    def finish(self, timeout: float) -> None:
        """With a `limit`: waits until so many jobs are accepted."""
        self._join(timeout)
        if len(self.accepted) < (self.limit or 0):
            raise Red(f"{len(self.accepted)} of {self.limit} jobs were accepted within {timeout:.0f} s; "
                      f"the last answers: {self.summary(self.answers[-20:])}")

    def probe(self, count: int) -> List[Answer]:
        """Sends so many more jobs at once, over all gateways, each only once; accepted jobs join the ledger."""
        urls = self._addresses()

        def once(turn: int) -> Answer:
            topic, key = self.topics[turn % len(self.topics)], uuid.uuid4().hex
            answer, job = self._send(urls[turn % len(urls)], key, self._body(topic))
            with self._lock:
                if job:
                    self.accepted.append(Submitted(job, topic, key, answer.at))
            return answer

        with ThreadPoolExecutor(6) as pool:
            return list(pool.map(once, range(count)))

    def ids(self) -> List[str]:
        """The accepted jobs, once each."""
        return list(dict.fromkeys(each.job for each in self.accepted))

    def since(self, at: float, until: float = float("inf")) -> List[Answer]:
        """The answers within a span of time."""
        return [answer for answer in list(self.answers) if at <= answer.at < until]

    @staticmethod
    def summary(answers: Sequence[Answer]) -> Dict[str, int]:
        """The number of each kind of answer."""
        found = Counter(f"{a.status} {a.code}".strip() + (" deferred" if a.deferred else "") if a.status else a.code for a in answers)
        return dict(sorted(found.items()))

    # -- inside

    def _halt(self) -> None:
        self._gives_up = 0.0
        self._stopping.set()
        self._join(10)

    def _join(self, timeout: float) -> None:
        ends = time.monotonic() + timeout + 6
        for lane in self._lanes:
            lane.join(max(0.0, ends - time.monotonic()))

    def _turn(self) -> Optional[int]:
        """Waits for the time of the next job and returns its number; None at the end."""
        while not self._stopping.is_set():
            with self._lock:
                if self.limit is not None and self._begun >= self.limit:
                    return None
                now = time.monotonic()
                if now >= self._next:
                    # After an outage the load continues at its rate and does not catch up.
                    self._next = max(self._next + 1 / self.rate, now - 1 / self.rate)
                    self._begun += 1
                    return self._begun - 1
                wait = self._next - now
            self._stopping.wait(min(wait, 0.2))
        return None

    def _lane(self, lane: int) -> None:
        while True:
            turn = self._turn()
            if turn is None:
                return
            self._submit(turn, lane)

    def _submit(self, turn: int, lane: int) -> None:
        topic, key = self.topics[turn % len(self.topics)], uuid.uuid4().hex
        body, tries, missed = self._body(topic), 0, 0
        while True:
            urls = self._addresses()
            answer, job = self._send(urls[(turn + lane + tries) % len(urls)] if urls else "", key, body)
            with self._lock:
                self.answers.append(answer)
                if job:
                    self.accepted.append(Submitted(job, topic, key, answer.at))
                    return
            if time.monotonic() > self._gives_up:
                self.unresolved.append(key)
                return
            tries, missed = tries + 1, missed + 1 if answer.code == UNREACHED else 0
            # Like a load balancer, skip an address that refuses the connection at once.
            if missed and missed % max(len(urls), 1) == 0:
                with self._lock:
                    self.answers.append(answer._replace(code=NOWHERE))
            if not missed or missed % max(len(urls), 1) == 0:
                time.sleep(0.2 if answer.retry_after is None else 0.5)

    def _body(self, topic: str) -> bytes:
        return json.dumps({"topic": topic, "payload": {"ms": self.ms, "work_ms": self.ms}, **self.fields}).encode()

    def _send(self, url: str, key: str, body: bytes) -> "tuple[Answer, Optional[str]]":
        began = time.monotonic()
        place = urllib.parse.urlsplit(url)

        def result(status: int, code: str, headers: Any = None) -> Answer:
            headers = headers or {}
            return Answer(began, time.monotonic() - began, status, code, headers.get("Retry-After"),
                          headers.get("Muster-Bus") == "deferred", url)

        line = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=5)
        try:
            try:
                line.connect()
            except OSError:
                return result(0, UNREACHED), None
            headers = {"Authorization": f"Bearer {self.ctx.stack.api_key}", "Content-Type": "application/json", "Idempotency-Key": key}
            line.request("POST", "/api/v1/jobs", body, headers)
            answer = line.getresponse()
            found = json.loads(answer.read() or b"{}")
        except (OSError, ValueError, http.client.HTTPException, socket.timeout) as fault:
            return result(0, f"{CUT} by {type(fault).__name__}"), None
        finally:
            line.close()
        code = found.get("code", "") if answer.status >= 300 else ""
        return result(answer.status, code, answer.headers), found["id"] if answer.status in (200, 202) else None
