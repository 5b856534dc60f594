#!/usr/bin/env python3
"""Runs every test program of the workspace, two at a time, and then the examples in the docs.

`cargo test` runs one program after the other, and most of ours wait: for a lease to run out, for a
server to come back. Two at a time leave no core idle while the last test of a program waits. Those in ALONE follow, one
by one, and so do the tests within them.

Arguments go to `cargo test` as they are (features, for example). TEST_PROGRAMS sets how many
programs run at a time, RUST_TEST_THREADS how many tests within each, except those in ALONE.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple


# Programs that compare times or offer a flood: nothing else may take the cores from them, nor they from others. Their
# tests run one by one too.
ALONE = ("tests::overload", "tests::sick", "tests::sick_leader")
# How much of a panic the summary repeats.
PANIC_LINES = 12
LINE_LENGTH = 2_000
# How many of the slowest tests the summary names, and the line of a test with its seconds.
SLOWEST = 10
TIMED_TEST = re.compile(r"^test (\S+).* <([0-9.]+)s>$", re.MULTILINE)


class Program(NamedTuple):
    name: str
    path: str
    directory: Path

    @property
    def notes(self) -> Path:
        """Where its last duration is kept, beside what cargo built."""
        return Path(self.path).parent / f"{self.name.replace('::', '-')}.seconds"

    @property
    def seconds(self) -> float:
        """How long it takes, as an earlier run knows; else those with whole stacks take longest."""
        try:
            return float(self.notes.read_text())
        except (OSError, ValueError):
            return float("inf") if self.directory.name == "tests" else 0.0


class Outcome(NamedTuple):
    program: Program
    code: int
    seconds: float
    output: str


def built(arguments: list[str]) -> list[Program]:
    """Builds the test programs and returns their names and paths."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = Path(message["manifest_path"]).parent
        programs.append(Program(f"{directory.name}::{message['target']['name']}", message["executable"], directory))
    return programs


def run(program: Program) -> Outcome:
    began = time.monotonic()
    # The harness reports the duration of each test only as an unstable feature.
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(program.directory), "RUSTC_BOOTSTRAP": "1"}
    if program.name in ALONE:
        environment["RUST_TEST_THREADS"] = "1"
    done = subprocess.run(
        [program.path, "-Zunstable-options", "--report-time"],
        cwd=program.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode == 0:
        program.notes.write_text(f"{seconds:.1f}\n")
    return Outcome(program, done.returncode, seconds, done.stdout)


def slowest(outcomes: list[Outcome]) -> str:
    """The tests that took longest, over all programs."""
    tests = [
        (float(seconds), f"{outcome.program.name}::{test}")
        for outcome in outcomes
        for test, seconds in TIMED_TEST.findall(outcome.output)
    ]
    return "\n".join(f"{seconds:8.1f} s  {test}" for seconds, test in sorted(tests, reverse=True)[:SLOWEST])


def panics(output: str) -> str:
    """What each test that failed says of itself, without the logs of its servers."""
    said, wanted = [], 0
    for line in output.splitlines():
        if line.startswith("thread '") and "panicked at" in line:
            wanted = PANIC_LINES
        if wanted and not line.startswith(("---", "note:", '{"timestamp"')):
            said.append(line[:LINE_LENGTH])
            wanted -= 1
        else:
            wanted = 0
    return "\n".join(said)


def main() -> int:
    arguments = sys.argv[1:]
    os.environ.setdefault("RUST_TEST_THREADS", "3")
    # The longest first, so that none of them runs alone at the end.
    programs = sorted(built(arguments), key=lambda program: -program.seconds)
    began, outcomes = time.monotonic(), []
    alone = [program for program in programs if program.name in ALONE]
    together = [program for program in programs if program not in alone]
    for part, at_once in ((together, int(os.environ.get("TEST_PROGRAMS", "2"))), (alone, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            for running in as_completed([pool.submit(run, program) for program in part]):
                outcome = running.result()
                outcomes.append(outcome)
                print(f"\n     Running {outcome.program.name} ({outcome.seconds:.0f} s)", flush=True)
                print(outcome.output, flush=True)
    took = time.monotonic() - began
    examples = subprocess.run(["cargo", "test", "--workspace", "--doc", "--no-fail-fast", *arguments], check=False)
    for outcome in outcomes:
        if outcome.code != 0:
            print(f"\n     Failed in {outcome.program.name}\n{panics(outcome.output)}", flush=True)
    failed = [outcome.program.name for outcome in outcomes if outcome.code != 0]
    if examples.returncode != 0:
        failed.append("the examples in the docs")
    print(f"\nThe slowest tests:\n{slowest(outcomes)}", flush=True)
    print(f"{len(programs)} test programs in {took:.0f} s", flush=True)
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
