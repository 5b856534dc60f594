#!/usr/bin/env python3
"""Runs every test program of the workspace, two at a time, and then the examples in the docs.

`cargo test` runs one program after the other, and most of ours wait: for a lease to run out, for a
server to come back. Two at a time leave no core idle while the last test of a program waits.

Arguments go to `cargo test` as they are (features, for example). TEST_PROGRAMS sets how many
programs run at a time, RUST_TEST_THREADS how many tests within each.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple


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
    """Builds the test programs and tells which they are."""
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
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(program.directory)}
    done = subprocess.run(
        [program.path],
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


def main() -> int:
    arguments = sys.argv[1:]
    os.environ.setdefault("RUST_TEST_THREADS", "3")
    # The longest first, so that none of them runs alone at the end.
    programs = sorted(built(arguments), key=lambda program: -program.seconds)
    began, outcomes = time.monotonic(), []
    with ThreadPoolExecutor(int(os.environ.get("TEST_PROGRAMS", "2"))) as pool:
        for running in as_completed([pool.submit(run, program) for program in programs]):
            outcome = running.result()
            outcomes.append(outcome)
            print(f"\n     Running {outcome.program.name} ({outcome.seconds:.0f} s)", flush=True)
            print(outcome.output, flush=True)
    took = time.monotonic() - began
    examples = subprocess.run(["cargo", "test", "--workspace", "--doc", "--no-fail-fast", *arguments], check=False)
    failed = [outcome.program.name for outcome in outcomes if outcome.code != 0]
    if examples.returncode != 0:
        failed.append("the examples in the docs")
    print(f"{len(programs)} test programs in {took:.0f} s", flush=True)
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
