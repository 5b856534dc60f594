"""Tests the command line on a compose stack: `stack from-compose`, then, with its state file, every drill that can attach
to a compose stack, and a bench.

`make compose-test` runs it as `python3 -m gate.attached`. It starts its own HA stack as `--up` does, and removes it. Each
drill must pass. Afterwards the state file must show the processes that the drill replaced, with the pids of the engine.
The exit code is 0 if every command succeeded with the expected output, else 1.
"""

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

from .model import Gate, Red, Skip
from .pool import Pool
from .runner import Interrupted, signals_interrupt
from .stacks.base import find_program

JOBS = 2000
SERVICES = ("gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "workflow-1", "workflow-2")
# Each drill with the services whose process it replaces. "one gateway": the drill chooses which one.
DRILLS: Dict[str, List[str]] = {
    "worker": [],
    "gateway": ["one gateway"],
    "leader": ["scheduler-1", "scheduler-2"],
    "rolling": list(SERVICES),
}


def muster(*words: str, timeout: float) -> Any:
    """Runs `muster … -o json` and returns its output; Red with the error output if it fails."""
    command = [find_program("muster"), *words, "-o", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Red(f"muster {' '.join(words[:2])} did not end within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise Red(f"muster {' '.join(words[:2])} ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-800:]}")
    return json.loads(done.stdout)


def use(project: str, state: Path) -> None:
    """Runs every command that accepts the state file of a compose stack."""
    found = muster("stack", "from-compose", "--project", project, "--all", "--state-file", str(state), timeout=60)
    names = sorted(process["name"] for process in found["processes"])
    missing = sorted(set(SERVICES) - set(names))
    if missing:
        raise Red(f"the state file lacks {', '.join(missing)}: it has {names}")
    print(f"ok    stack from-compose: {', '.join(names)}", flush=True)
    for name, wanted in DRILLS.items():
        drill(project, state, name, wanted)
    bench = muster("bench", "submit", "--jobs", str(JOBS), "--connections", "16", "--state-file", str(state), timeout=300)
    if not bench["exact"] or bench["delivery"]["succeeded"] != JOBS:
        raise Red(f"bench submit was not exact: {json.dumps(bench['delivery'])}")
    print(f"ok    bench submit of {JOBS} jobs: {json.dumps(bench)[:400]}", flush=True)


def drill(project: str, state: Path, name: str, wanted: List[str]) -> None:
    """Runs one drill; red unless it passes and the state file shows exactly the processes that it replaced."""
    before = pids(state)
    found = muster("drill", name, "--state-file", str(state), timeout=400)
    if found["verdict"] != "pass" or not found["recovery"]:
        raise Red(f"drill {name} did not pass: {json.dumps(found)[:800]}")
    fault = replaced(before, pids(state), wanted)
    if fault:
        raise Red(f"drill {name}: {fault}")
    fresh = state.with_name("fresh.json")
    muster("stack", "from-compose", "--project", project, "--all", "--state-file", str(fresh), timeout=60)
    if pids(fresh) != pids(state):
        raise Red(f"drill {name}: the state file has the pids {pids(state)}, and the engine {pids(fresh)}")
    print(f"ok    drill {name}, new pid of {', '.join(wanted) or 'no service'}: {json.dumps(found)[:400]}", flush=True)


def pids(state: Path) -> Dict[str, int]:
    """The pid of each process by name, from a state file."""
    return {process["name"]: process["pid"] for process in json.loads(state.read_text())["processes"]}


def replaced(before: Dict[str, int], after: Dict[str, int], wanted: List[str]) -> str:
    """What is wrong with the pids after a drill; empty if exactly the wanted processes have new ones."""
    if set(before) != set(after):
        return f"the state file names {sorted(after)}, before it named {sorted(before)}"
    new = sorted(name for name in after if after[name] != before[name])
    if wanted == ["one gateway"]:
        fine = len(new) == 1 and new[0].startswith("gateway-")
    else:
        fine = new == sorted(wanted)
    return "" if fine else f"by the state file {new or 'no process'} was replaced; {wanted or 'no process'} should have been"


@contextmanager
def stack(folder: Path) -> Iterator[str]:
    """Starts an HA stack; yields the name of its project."""
    pool = Pool(folder, up=True, project=None, state_file=None, keep=False)
    try:
        yield pool(Gate(0, "attached", "", lambda _ctx: None, ())).project  # type: ignore[attr-defined]
    finally:
        pool.close()


def main() -> int:
    """Runs the whole test."""
    with tempfile.TemporaryDirectory(prefix="muster-attached-") as name:
        folder = Path(name)
        try:
            with signals_interrupt(), stack(folder / "stack") as project:
                use(project, folder / "stack.json")
        except Skip as skipped:
            print(f"######## SKIPPED: the command line on a compose stack: {skipped} ########")
            return 1
        except (Red, OSError, ValueError) as fault:
            print(f"FAIL  {fault}", file=sys.stderr)
            return 1
        except Interrupted as ended:
            print(f"FAIL  interrupted by {ended}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
