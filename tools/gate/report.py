"""The report of a run: lines for people, one JSON document for programs, an exit code."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from .model import GREEN, RED, SKIPPED, Result

WORDS = {GREEN: "GREEN", RED: "RED", SKIPPED: "SKIPPED"}


@dataclass
class Report:
    """Everything that one run has found."""

    strict: bool
    seed: int
    started_at: str
    stacks: List[Dict[str, Any]] = field(default_factory=list)
    results: List[Result] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: Optional[str] = None

    @property
    def green(self) -> bool:
        """Whether every gate ran and passed, and there was at least one."""
        return bool(self.results) and not self.interrupted and all(each.verdict == GREEN for each in self.results)

    @property
    def blind(self) -> List[str]:
        """Controls that did not turn their gate red for the right reason: such a gate is broken."""
        return [
            f"gate {result.number}, {control.name}: {control.verdict} {control.reason}".rstrip()
            for result in self.results
            for control in result.controls
            if not control.seen
        ]

    @property
    def strays(self) -> List[str]:
        """Faults that turned another gate red, although they do not declare it."""
        return [
            f"gate {result.number}, {control.name}: gate {number} is {control.others[number]}"
            for result in self.results
            for control in result.controls
            for number in control.strays
        ]

    @property
    def verdict(self) -> str:
        """The verdict of the whole run, in one word."""
        if self.blind:
            return "BLIND"
        if self.strays:
            return "INEXACT"
        if self.green:
            return "GREEN"
        return "RED" if self.strict else "ADVISORY"

    @property
    def exit_code(self) -> int:
        """1 if something is not green with `--strict`. Always 1 if a gate does not detect its fault: then the gate is broken,
        and the report is no advice about a stack."""
        if self.interrupted or self.blind or self.strays:
            return 1
        return 1 if self.strict and not self.green else 0

    def document(self) -> Dict[str, Any]:
        """The verdict document."""
        return {
            "document": "muster-gate/1",
            "verdict": self.verdict,
            "strict": self.strict,
            "exit_code": self.exit_code,
            "seed": self.seed,
            "started_at": self.started_at,
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "stacks": self.stacks,
            "gates": [
                {**asdict(result), "controls": [{**asdict(c), "seen": c.seen} for c in result.controls]}
                for result in self.results
            ],
        }

    def write(self, path: Path) -> None:
        """Writes the whole document or nothing."""
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(self.document(), indent=2, default=str) + "\n")
        fresh.replace(path)

    def print(self) -> None:
        """Prints the verdict for people."""
        print()
        for result in self.results:
            print_line(result)
        reds = [r for r in self.results if r.verdict == RED]
        skips = [r for r in self.results if r.verdict == SKIPPED]
        greens = len(self.results) - len(reds) - len(skips)
        controls = [control for result in self.results for control in result.controls]
        seen = f"; {sum(c.seen for c in controls)} of {len(controls)} faults seen" if controls else ""
        print(
            f"{self.verdict}: {greens} of {len(self.results)} gates green, {len(reds)} red, {len(skips)} skipped"
            f"{seen}; seed {self.seed}; {self.seconds:.0f} s"
        )
        for line in self.blind:
            print(f"  BLIND  {line}")
        for line in self.strays:
            print(f"  STRAY  {line}")
        if self.interrupted:
            print(f"  interrupted by {self.interrupted}: nothing is proven")
        if self.verdict == "ADVISORY":
            print("  advice only: with --strict this would exit 1")
        sys.stdout.flush()


def print_line(result: Result) -> None:
    """Prints one gate in one line."""
    reason = f": {result.reason}" if result.reason else ""
    print(f"{WORDS[result.verdict]:8} gate {result.number} {result.name} ({result.seconds:.1f} s){reason}")


def print_result(result: Result) -> None:
    """One gate: its verdict, its evidence, its controls."""
    print_line(result)
    for key, value in result.evidence.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        print(f"           {key}: {text if len(text) <= 200 else text[:200] + ' …'}")
    for control in result.controls:
        word = "seen" if control.seen else "BLIND"
        print(f"           fault {control.name}: {word} ({control.seconds:.1f} s): {control.verdict} {control.reason[:300]}")
        for number, how in control.others.items():
            word = "STRAY" if number in control.strays else "as declared" if how != GREEN else "left alone"
            print(f"             gate {number} under this fault: {word}: {how[:200]}")
    if result.logs:
        print(f"           logs: {result.logs}")
