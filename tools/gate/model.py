"""What a gate is, what a red control is, and how a gate can end.

A gate proves one promise on a live stack. Its red controls are faults that must turn it red; a gate
without one does not count, because nothing shows that it can fail.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from .context import Context

GREEN, RED, SKIPPED = "green", "red", "skipped"

# What a gate needs. Less is better: a gate that needs no stack runs everywhere.
NOTHING = "nothing"  # reads files only
STACK = "stack"  # a compose stack or the processes of `muster dev`
CONTAINERS = "containers"  # a compose stack


class Red(Exception):
    """The gate found something wrong; the text names it."""


class Skip(Exception):
    """The gate cannot run here; the text says why. Skipped is never green."""


@dataclass(frozen=True)
class Control:
    """A fault that must turn its gate red.

    `plant(ctx)` is a context manager: the fault is there inside the block and gone after it.
    `expect` is a regular expression that the gate's red reason must match, so that a gate that is
    red for another reason does not pass for one that saw the fault.
    `needs` says on which stacks the fault can be planted.
    `also` names other gates that the fault may turn red by its nature: where no worker runs, no gate that
    counts executions can be green.
    `inside` says that the fault exists only in the gate's own run (in its input, in a step of it, in a command
    of its own) and not in the stack. Another gate cannot meet it, so none runs beside it.
    """

    name: str
    plant: "Callable[[Context], ContextManager[Any]]"
    expect: str
    needs: str = STACK
    also: Tuple[int, ...] = ()
    inside: bool = False

    def __post_init__(self) -> None:
        re.compile(self.expect)
        if self.inside and self.also:
            raise ValueError(f"the fault {self.name!r} is only inside its gate and turns gates {self.also} red: one is wrong")


@dataclass(frozen=True)
class Gate:
    """One promise: its number and name, what it needs, the check, and the faults that it must see."""

    number: int
    name: str
    passes_when: str
    run: "Callable[[Context], None]"
    controls: Sequence[Control]
    needs: str = STACK
    # Compose overlays by their short name: `ha` is docker-compose.ha.yaml. Gates with the same
    # overlays share one stack.
    overlays: Tuple[str, ...] = ("ha",)
    # Compose profiles that must be up.
    profiles: Tuple[str, ...] = ()
    # A run that takes longer is red.
    limit_s: float = 300.0
    # It may run while a fault of another gate is planted (--exact): it leaves the stack as it found it.
    beside: bool = False


@dataclass
class Result:
    """How one run of a gate ended, with its evidence."""

    number: int
    name: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    evidence: Dict[str, Any] = field(default_factory=dict)
    controls: "List[ControlResult]" = field(default_factory=list)
    logs: Optional[str] = None
    # The gate's own code failed. Red, but no sign that it saw anything.
    broken: bool = False


@dataclass
class ControlResult:
    """How a gate answered to a planted fault. `seen` is what the self-test asks for."""

    name: str
    expect: str
    verdict: str
    reason: str
    seconds: float
    # How other gates ended under the same fault (--exact), by number: `green`, or `red: why`.
    others: Dict[int, str] = field(default_factory=dict)
    # Those of them that the fault should have left alone.
    strays: List[int] = field(default_factory=list)
    # The fault was only inside the gate's own run: no other gate could meet it.
    inside: bool = False

    @property
    def seen(self) -> bool:
        """The gate turned red, and for the reason that names the fault."""
        return self.verdict == RED and re.search(self.expect, self.reason, re.IGNORECASE | re.DOTALL) is not None
