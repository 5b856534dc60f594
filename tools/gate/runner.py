"""Runs gates, with or without a planted fault, and collects their results.

Each run has a time limit. An exception of a gate becomes a verdict. A gate without evidence is red. Logs are kept for
red gates. Every stack that was started is removed afterwards, also if a signal ends the run.
"""

import datetime
import signal
import sys
import time
import traceback
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .context import Context
from .model import CONTAINERS, GREEN, NOTHING, RED, SKIPPED, Control, ControlResult, Gate, Red, Result, Skip
from .report import Report, print_result
from .stacks.base import Stack

Pool = Callable[[Gate], Stack]


class Interrupted(BaseException):
    """A signal asked the gate to end. Not an Exception, so that no gate catches it."""


class Timeout(Exception):
    """A gate exceeded its time limit."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP end the run and its clean-up runs. A second signal does not interrupt the clean-up."""

    def interrupt(number: int, _frame: Any) -> None:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        signal.alarm(0)
        raise Interrupted(signal.Signals(number).name)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises Timeout in the block after so many seconds."""

    def late(_number: int, _frame: Any) -> None:
        raise Timeout()

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Runner:
    """One run over a list of gates."""

    def __init__(self, pool: Pool, folder: Path, report: Report, only: Optional[str] = None,
                 exact: Sequence[Gate] = ()) -> None:
        self.pool, self.folder, self.report, self.only, self.exact = pool, folder, report, only, exact
        self._described: Set[int] = set()
        # Gates of `exact` that are green without a fault, by number.
        self._sound: Dict[int, bool] = {}

    def run(self, gates: List[Gate], self_test: Set[int]) -> Report:
        """Runs each gate, and those in `self_test` once more with each of their faults."""
        began = time.monotonic()
        try:
            with signals_interrupt():
                for gate in gates:
                    self._gate(gate, gate.number in self_test)
        except Interrupted as ended:
            self.report.interrupted = str(ended)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _gate(self, gate: Gate, self_test: bool) -> None:
        _say(f"gate {gate.number} {gate.name}: {gate.passes_when}")
        stack, result = self._stack_for(gate)
        if result is None:
            result = self.attempt(gate, stack, f"g{gate.number:02}")
            self._sound[gate.number] = result.verdict == GREEN
        self.report.results.append(result)
        if self_test:
            if not gate.controls:
                _turn_red(result, "this gate has no red control, so nothing shows that it can fail")
            for number, control in enumerate(gate.controls):
                if self.only and self.only not in control.name:
                    continue
                result.controls.append(self._control(gate, control, stack, number, result))
        print_result(result)
        sys.stdout.flush()

    def _stack_for(self, gate: Gate) -> Tuple[Optional[Stack], Optional[Result]]:
        if gate.needs == NOTHING:
            return None, None
        began = time.monotonic()
        try:
            stack = self.pool(gate)
            if gate.needs == CONTAINERS and not stack.containers:
                raise Skip("this gate needs containers: run it on a compose stack, with --up or --project")
            if id(stack) not in self._described:
                self._described.add(id(stack))
                self.report.stacks.append(stack.describe())
                _say(f"stack: {self.report.stacks[-1]}")
            return stack, None
        except Skip as skipped:
            return None, Result(gate.number, gate.name, SKIPPED, str(skipped), time.monotonic() - began)
        except (Red, OSError) as fault:
            reason = f"the stack did not start: {fault}"
            return None, Result(gate.number, gate.name, RED, reason, time.monotonic() - began)

    def attempt(self, gate: Gate, stack: Optional[Stack], label: str, control: Optional[Control] = None,
                others: "Optional[Dict[int, Result]]" = None, worker_mode: Optional[str] = None) -> Result:
        """Runs one gate once, with or without a planted fault.

        With `others`, these gates also run under the same fault, and their results are put there.
        """
        folder = self.folder / label
        folder.mkdir(parents=True, exist_ok=True)
        ctx = Context(stack, folder, self.report.seed, label)
        ctx.worker_mode = worker_mode
        result = Result(gate.number, gate.name, RED)
        began = time.monotonic()
        try:
            with ExitStack() as planted:
                if control:
                    try:
                        with time_limit(gate.limit_s):
                            planted.enter_context(control.plant(ctx))
                    except (Red, OSError, Timeout) as fault:
                        raise Broken(f"the fault could not be planted: {fault}") from fault
                try:
                    with time_limit(gate.limit_s):
                        gate.run(ctx)
                    result.verdict = GREEN
                except Red as red:
                    result.reason = str(red)
                except Skip as skipped:
                    result.verdict, result.reason = SKIPPED, str(skipped)
                except Timeout:
                    result.reason = f"did not end within {gate.limit_s:.0f} s"
                except OSError as away:
                    result.reason = f"something did not answer: {away}"
                if result.verdict == RED and not control and stack:
                    stack.keep_logs(folder / "logs")
                # Stop the workers before the fault is undone; otherwise they would work on a healthy stack.
                ctx.close()
                for other in [each for each in self.exact if others is not None and each.number in others]:
                    others[other.number] = self.attempt(other, stack, f"{label}-g{other.number:02}", worker_mode=ctx.worker_mode)
        except Broken as broken:
            result.verdict, result.reason = SKIPPED, str(broken)
        except (Red, OSError) as fault:
            _turn_red(result, f"{result.reason}; the fault could not be undone: {fault}".lstrip("; "))
        except Exception as fault:  # noqa: BLE001 - a broken gate is red
            result.broken = True
            result.verdict, result.reason = RED, f"the gate itself broke: {type(fault).__name__}: {fault}"
            (folder / "traceback.txt").write_text(traceback.format_exc())
        finally:
            ctx.close()
        result.evidence, result.seconds = ctx.evidence, time.monotonic() - began
        if result.verdict == GREEN and not result.evidence:
            _turn_red(result, "the gate showed no evidence: 0 of 0 is never green")
        if result.verdict == RED:
            result.logs = str(folder)
        return result

    def _control(self, gate: Gate, control: Control, stack: Optional[Stack], number: int, base: Result) -> ControlResult:
        _say(f"gate {gate.number} with the fault: {control.name}")
        if base.verdict != GREEN:
            reason = f"not tried: without the fault the gate is {base.verdict}"
            return ControlResult(control.name, control.expect, SKIPPED, reason, 0.0)
        if control.needs == CONTAINERS and not (stack and stack.containers):
            reason = "not tried: this fault needs containers"
            return ControlResult(control.name, control.expect, SKIPPED, reason, 0.0)
        beside = [] if control.inside else self._beside(gate, stack)
        others = {each.number: Result(each.number, each.name, SKIPPED, "not tried") for each in beside}
        result = self.attempt(gate, stack, f"g{gate.number:02}-fault-{number + 1}", control, others)
        verdict = "broken" if result.broken else result.verdict
        found = ControlResult(control.name, control.expect, verdict, result.reason, result.seconds, inside=control.inside)
        for other in others.values():
            found.others[other.number] = f"{other.verdict}: {other.reason}" if other.reason else other.verdict
            if other.verdict != GREEN and other.number not in control.also:
                found.strays.append(other.number)
            _say(f"gate {other.number} under this fault is {found.others[other.number][:300]}")
        _say(f"{'seen' if found.seen else 'NOT SEEN'} after {found.seconds:.1f} s: {found.verdict} {found.reason[:300]}")
        return found

    def _beside(self, gate: Gate, stack: Optional[Stack]) -> List[Gate]:
        """The gates that also run under the faults of this one: on the same stack, and green without a fault."""
        found = []
        for other in self.exact:
            same = (other.overlays, other.profiles) == (gate.overlays, gate.profiles)
            here = other.needs == NOTHING or (stack is not None and (other.needs != CONTAINERS or stack.containers))
            if other.number == gate.number or not same or not here:
                continue
            if other.number not in self._sound:
                _say(f"gate {other.number} {other.name} without a fault, to compare with")
                before = self.attempt(other, stack, f"g{other.number:02}-before")
                self._sound[other.number] = before.verdict == GREEN
                if before.verdict != GREEN:
                    _say(f"gate {other.number} is {before.verdict} without a fault, so it is not compared: {before.reason[:200]}")
            found += [other] if self._sound[other.number] else []
        return found


class Broken(Exception):
    """A fault could not be planted, so the gate was not tested."""


def _turn_red(result: Result, reason: str) -> None:
    result.verdict, result.reason = RED, reason


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def now() -> str:
    """The current time, for the report."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
