"""What a gate is, what a red control is, and how a gate can end.

A gate proves one promise on a live stack. Its red controls are faults that must turn it red. A gate without a red
control does not count, because nothing shows that it can fail.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from .context import Context

GREEN, RED, SKIPPED = "green", "red", "skipped"

# What a gate needs. A gate that needs no stack runs everywhere.
NOTHING = "nothing"  # reads files only
STACK = "stack"  # a compose stack or the processes of `muster dev`
CONTAINERS = "containers"  # a compose stack


class Red(Exception):
    """The gate has found a fault; the text names it."""


class Skip(Exception):
    """The gate cannot run here; the text says why. Skipped is never green."""


@dataclass(frozen=True)
class Control:
    """A fault that must turn its gate red.

    `plant(ctx)` is a context manager: the fault exists inside the block only.
    `expect` is a regular expression that the gate's red reason must match. A gate that is red for another reason has
    not detected the fault.
    `needs` says on which stacks the fault can be planted.
    `also` names other gates that the fault may turn red too: without a worker, no gate that counts executions is green.
    `inside`: the fault exists only in the gate's own run (in its input, its steps or its commands) and not in the
    stack. It cannot affect other gates, so none runs beside it.
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
    """One promise: its number and name, what it needs, the check, and the faults that it must detect."""

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
    # May run while a fault of another gate is planted (--exact), because it does not change the stack.
    beside: bool = False


@dataclass
class Result:
    """The result of one run of a gate, with its evidence."""

    number: int
    name: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    evidence: Dict[str, Any] = field(default_factory=dict)
    controls: "List[ControlResult]" = field(default_factory=list)
    logs: Optional[str] = None
    # The gate's own code failed. It is red, but has not detected a fault.
    broken: bool = False


@dataclass
class ControlResult:
    """The result of a gate under a planted fault. The self-test requires `seen`."""

    name: str
    expect: str
    verdict: str
    reason: str
    seconds: float
    # The results of other gates under the same fault (--exact), by number: `green`, or `red: why`.
    others: Dict[int, str] = field(default_factory=dict)
    # The gates among them that the fault should not have turned red.
    strays: List[int] = field(default_factory=list)
    # The fault existed only in the gate's own run and could not affect other gates.
    inside: bool = False

    @property
    def seen(self) -> bool:
        """Whether the gate turned red with a reason that names the fault."""
        return self.verdict == RED and re.search(self.expect, self.reason, re.IGNORECASE | re.DOTALL) is not None
