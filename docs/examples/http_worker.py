#!/usr/bin/env python3
"""A Muster worker with nothing but HTTP and Python's standard library.

    python3 docs/examples/http_worker.py [TOPIC]

It finds the stack by MUSTER_URL and MUSTER_API_KEY, or by ./.muster/stack.json of `make run`.
Its work: count the words of {"text": "...", "seconds": 2}, taking so long for it.
"""
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

WORKER = f"py-{uuid.uuid4().hex[:8]}"
TOPIC = sys.argv[1] if len(sys.argv) > 1 else "words"
LEASE_MS = 10_000  # silent for so long, and another worker gets the job
leaving = threading.Event()


class Permanent(Exception):
    """A failure that no further attempt would change."""


def find_stack():
    if "MUSTER_URL" in os.environ:
        return os.environ["MUSTER_URL"], os.environ["MUSTER_API_KEY"]
    with open(".muster/stack.json") as file:
        stack = json.load(file)
    return next(p["http"] for p in stack["processes"] if p["service"] == "gateway"), stack["api_key"]


def call(path, body):
    """Posts to the gateway, again until it answers: every worker call may be repeated as it is."""
    request = urllib.request.Request(
        URL + "/api/v1/worker/" + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": "Bearer " + KEY, "Content-Type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            if refused.code not in (429, 500, 502, 503, 504):
                raise SystemExit(f"{path}: {refused.code} {refused.read().decode()}")
            time.sleep(int(refused.headers.get("Retry-After", 1)))
        except OSError:  # the gateway is away; another one would do as well
            time.sleep(1)


def handle(payload, report, stop):
    """The work itself. `report` tells progress; `stop` is set when nobody wants the result any more."""
    if not isinstance(payload, dict) or not isinstance(payload.get("text"), str):
        raise Permanent('the payload must be {"text": "..."}')
    for done in range(1, 5):
        if stop.wait(payload.get("seconds", 0) / 4):
            return None
        report(done * 25, "counting")
    return {"words": len(payload["text"].split()), "by": WORKER}


def keep(held, stop, done):
    """Holds the lease from a thread. With `wait_ms` the answer comes early when the job is cancelled."""
    while not done.is_set():
        ask = {"worker_id": WORKER, "lease_ms": LEASE_MS, "wait_ms": LEASE_MS // 3, "items": [held]}
        if call("extend", ask)["items"][0]["status"] != "ok":  # cancelled, timed out, or lost
            return stop.set()


def run(job):
    held = {"job_id": job["job_id"], "fence": job["fence"]}  # the fence goes with everything we say
    stop, done = threading.Event(), threading.Event()
    threading.Thread(target=keep, args=(held, stop, done), daemon=True).start()

    def report(percent, message):
        item = {**held, "progress": {"percent": percent, "message": message}}
        call("extend", {"worker_id": WORKER, "lease_ms": LEASE_MS, "items": [item]})

    print(f"{job['job_id']}: attempt {job['attempt']} of {job['max_attempts']}", flush=True)
    try:
        item, verb = {**held, "result": handle(job.get("payload"), report, stop)}, "complete"
    except Exception as fault:  # whatever it is, say it: silence costs a whole lease
        error = {"message": str(fault), "retryable": not isinstance(fault, Permanent)}
        item, verb = {**held, "error": error}, "fail"
    if stop.is_set():
        print(f"{job['job_id']}: told to stop", flush=True)
    else:
        answer = call(verb, {"worker_id": WORKER, "items": [item]})["items"][0]
        print(f"{job['job_id']}: {verb}, {answer['status']} {answer.get('reason', '')}", flush=True)
    done.set()


def main():
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    signal.signal(signal.SIGINT, lambda *_: leaving.set())
    print(f"{WORKER} takes jobs of {TOPIC} at {URL}", flush=True)
    while not leaving.is_set():
        # A new id for each request; `call` repeats it with the same one, and so gets the same job.
        ask = {"request_id": uuid.uuid4().hex, "worker_id": WORKER, "topics": [TOPIC]}
        answer = call("lease", {**ask, "max": 1, "wait_ms": 5_000, "lease_ms": LEASE_MS})
        for job in answer["items"]:
            if leaving.is_set():  # not begun: give it back, the attempt is not counted
                held = {"job_id": job["job_id"], "fence": job["fence"]}
                call("release", {"worker_id": WORKER, "items": [held]})
            else:
                run(job)
        if answer["drain"]:
            break


if __name__ == "__main__":
    URL, KEY = find_stack()
    main()
