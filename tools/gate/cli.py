"""The command line of the gate. Exit codes: 0 green or advice only, 1 blocked, 2 wrong usage."""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional, Set

from . import catalogue
from .model import NOTHING, Gate
from .pool import Pool
from .report import Report
from .runner import Runner, now
from .stacks import engine
from .stacks.base import ROOT

DESCRIPTION = """Checks that a running Muster stack keeps its promises, gate by gate.

Without --strict the verdict is advice and the exit code is 0. With --strict the exit code is 1 unless every
gate is green; a skipped gate is not green. An unknown gate ends with 2."""


def parser() -> argparse.ArgumentParser:
    """All flags."""
    made = argparse.ArgumentParser(prog="production_gate.sh", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--gate", nargs="+", action="extend", default=[], metavar="N", help="only these gates; all if not given")
    made.add_argument("--strict", action="store_true", help="exit 1 unless every gate is green")
    made.add_argument("--json", type=Path, metavar="F", help="write the verdict document to this file")
    made.add_argument("--self-test", nargs="*", metavar="N",
                      help="plant the faults that must turn these gates red (all chosen gates if none is named)")
    made.add_argument("--control", metavar="TEXT", help="self-test: only faults whose name contains this text")
    made.add_argument("--exact", action="store_true",
                      help="self-test: also run the other quick gates under each fault; they must stay green unless the fault declares otherwise")
    made.add_argument("--list", action="store_true", help="list the gates and their faults")
    made.add_argument("--up", action="store_true", help="start a compose stack for the gates and remove it afterwards")
    made.add_argument("--keep", action="store_true", help="with --up: leave the stack running")
    made.add_argument("--project", metavar="P", help="use this running compose project")
    made.add_argument("--state-file", type=Path, metavar="F", help="use the stack of `muster dev` with this state file")
    made.add_argument("--without-engine", choices=("fail", "skip"), default="fail",
                      help="--up where no container engine answers: `skip` skips those gates with a clear message")
    made.add_argument("--seed", type=int, help="repeat the random choices of an earlier run")
    made.add_argument("--logs", type=Path, default=Path(os.environ.get("MUSTER_GATE_LOGS", ROOT / ".muster/gate")),
                      metavar="DIR", help="directory for the logs of red gates (.muster/gate)")
    return made


def main(arguments: List[str], gates: Optional[Dict[int, Gate]] = None) -> int:
    """Runs the gate; returns the exit code."""
    options = parser().parse_args(arguments)
    gates = catalogue.load() if gates is None else gates
    try:
        chosen = catalogue.choose(gates, options.gate)
        asked = options.self_test
        tested = set() if asked is None else {g.number for g in (catalogue.choose(gates, asked) if asked else chosen)}
    except catalogue.UnknownGate as unknown:
        print(f"error: {unknown}", file=sys.stderr)
        return 2
    if sum(map(bool, (options.up, options.project, options.state_file))) > 1:
        print("error: --up, --project and --state-file exclude each other", file=sys.stderr)
        return 2
    if options.list:
        print_list(chosen)
        return 0
    beside = [gate for gate in gates.values() if gate.beside] if options.exact else []
    return _run(options, _possible(options, chosen), tested, beside)


def _possible(options: argparse.Namespace, chosen: List[Gate]) -> List[Gate]:
    """The chosen gates. Without a container engine, and if allowed, only those that need no stack."""
    missing = engine.present() if options.up and options.without_engine == "skip" else None
    left_out = [gate for gate in chosen if missing and gate.needs != NOTHING]
    for gate in left_out:
        print(f"######## SKIPPED gate {gate.number} {gate.name}: {missing}. NOTHING IS PROVEN ABOUT IT ########", flush=True)
    return [gate for gate in chosen if gate not in left_out]


def _run(options: argparse.Namespace, chosen: List[Gate], tested: Set[int], beside: List[Gate]) -> int:
    if not chosen:
        print("no gate is left to run")
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    report = Report(options.strict, seed, now())
    fresh = [each for each in [options.logs, *options.logs.parents] if not each.exists()]
    options.logs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=report.started_at.replace(":", "").replace("+0000", "-"), dir=options.logs))
    pool = Pool(folder / "stack", options.up, options.project, options.state_file, options.keep)
    print(f"== seed {seed}; {'strict' if options.strict else 'advisory'}; logs {folder}", file=sys.stderr, flush=True)
    try:
        Runner(pool, folder, report, options.control, beside).run(chosen, tested)
    finally:
        pool.close()
        give_back([*fresh, folder])
    if options.json:
        report.write(options.json)
        give_back([options.json])
    report.print()
    return report.exit_code


def give_back(paths: List[Path]) -> None:
    """Under `sudo`: gives the files of the run to the user who called it. If `.muster` belonged to root, that user's
    `make run` could not write there."""
    owner = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
    if os.geteuid() != 0 or not all(word.isdigit() for word in owner):
        return
    for path in paths:
        for each in [path, *(path.rglob("*") if path.is_dir() else [])]:
            try:
                os.chown(each, int(owner[0]), int(owner[1]), follow_symlinks=False)
            except OSError:
                pass  # The file is gone, or we may not change its owner.


def print_list(gates: List[Gate]) -> None:
    """Prints every gate with what it proves and the faults that it must detect."""
    for gate in gates:
        print(f"{gate.number:3}  {gate.name}: {gate.passes_when} (needs {gate.needs})")
        for control in gate.controls:
            print(f"       fault: {control.name}")
