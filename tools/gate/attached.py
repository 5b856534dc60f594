"""The command line on a compose stack: `stack from-compose`, then a drill and a bench by that state file.

`make compose-test` runs it as `python3 -m gate.attached`. It starts an HA stack of its own as `--up` does, and removes it.
Exit code 0 if every command succeeded and said what it should, else 1.
"""

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from .model import Gate, Red, Skip
from .pool import Pool
from .runner import Interrupted, signals_interrupt
from .stacks.base import find_program

JOBS = 2000


def muster(*words: str, timeout: float) -> Any:
    """What `muster … -o json` prints; Red with its words when it fails."""
    command = [find_program("muster"), *words, "-o", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Red(f"muster {' '.join(words[:2])} did not end within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise Red(f"muster {' '.join(words[:2])} ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-800:]}")
    return json.loads(done.stdout)


def use(project: str, state: Path) -> None:
    """Every command that takes the state file of a compose stack."""
    told = muster("stack", "from-compose", "--project", project, "--all", "--state-file", str(state), timeout=60)
    names = sorted(process["name"] for process in told["processes"])
    missing = sorted({"gateway-1", "gateway-2", "scheduler-1", "scheduler-2"} - set(names))
    if missing:
        raise Red(f"the state file lacks {', '.join(missing)}: it has {names}")
    print(f"ok    stack from-compose: {', '.join(names)}", flush=True)
    drill = muster("drill", "worker", "--state-file", str(state), timeout=300)
    if drill["verdict"] != "pass" or not drill["recovery"]:
        raise Red(f"drill worker did not pass: {json.dumps(drill)[:800]}")
    print(f"ok    drill worker: {json.dumps(drill)[:400]}", flush=True)
    bench = muster("bench", "submit", "--jobs", str(JOBS), "--connections", "16", "--state-file", str(state), timeout=300)
    if not bench["exact"] or bench["delivery"]["succeeded"] != JOBS:
        raise Red(f"bench submit was not exact: {json.dumps(bench['delivery'])}")
    print(f"ok    bench submit of {JOBS} jobs: {json.dumps(bench)[:400]}", flush=True)


@contextmanager
def stack(folder: Path) -> Iterator[str]:
    """An HA stack; the name of its project."""
    pool = Pool(folder, up=True, project=None, state_file=None, keep=False)
    try:
        yield pool(Gate(0, "attached", "", lambda _ctx: None, ())).project  # type: ignore[attr-defined]
    finally:
        pool.close()


def main() -> int:
    """Runs all of it."""
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
