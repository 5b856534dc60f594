"""The gate's own rules: exit codes, evidence, red controls, clean-up. No stack is needed."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from gate import Context, Control, Gate, Red, Skip
from gate.cli import main
from gate.model import NOTHING

TOOLS = Path(__file__).resolve().parents[2]


def gate(run: Any, controls: Tuple[Control, ...] = (), number: int = 1, limit_s: float = 60.0) -> Dict[int, Gate]:
    return {number: Gate(number, "sample", "always", run, controls, needs=NOTHING, limit_s=limit_s)}


def green(ctx: Context) -> None:
    ctx.count("things", 2, 2)


def red(ctx: Context) -> None:
    ctx.note("seen", 1)
    raise Red("the reason")


@contextmanager
def plant_nothing(_ctx: Context) -> Iterator[None]:
    yield


class Running(unittest.TestCase):
    def run_gate(self, gates: Dict[int, Gate], *arguments: str) -> Tuple[int, Dict[str, Any], str]:
        """The exit code, the verdict document, what was printed."""
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(printed):
            document = Path(folder) / "verdict.json"
            code = main([*arguments, "--json", str(document), "--logs", folder], gates)
            found = json.loads(document.read_text()) if document.exists() else {}
        return code, found, printed.getvalue()


class Verdicts(Running):
    def test_an_unknown_gate_is_2(self) -> None:
        for word in ("99", "nineteen"):
            code, _, printed = self.run_gate(gate(green), "--gate", word)
            self.assertEqual(code, 2)
            self.assertIn(f"unknown gate {word}", printed)

    def test_a_green_gate_is_0_with_its_evidence_in_the_document(self) -> None:
        code, found, _ = self.run_gate(gate(green), "--strict", "--seed", "7")
        self.assertEqual((code, found["verdict"], found["seed"]), (0, "GREEN", 7))
        self.assertEqual(found["gates"][0]["evidence"], {"things": "2 of 2"})

    def test_red_is_advice_without_strict_and_blocks_with_it(self) -> None:
        code, found, printed = self.run_gate(gate(red))
        self.assertEqual((code, found["verdict"]), (0, "ADVISORY"))
        self.assertIn("ADVISORY", printed)
        code, found, _ = self.run_gate(gate(red), "--strict")
        self.assertEqual((code, found["verdict"], found["gates"][0]["reason"]), (1, "RED", "the reason"))

    def test_no_evidence_is_red(self) -> None:
        code, found, _ = self.run_gate(gate(lambda ctx: None), "--strict")
        self.assertEqual(code, 1)
        self.assertIn("no evidence", found["gates"][0]["reason"])

    def test_nothing_of_nothing_is_red(self) -> None:
        code, found, _ = self.run_gate(gate(lambda ctx: ctx.count("jobs", 0, 0)), "--strict")
        self.assertEqual(code, 1)
        self.assertIn("0 of 0", found["gates"][0]["reason"])

    def test_skipped_is_never_green(self) -> None:
        def skip(_ctx: Context) -> None:
            raise Skip("no engine here")

        code, found, _ = self.run_gate(gate(skip), "--strict")
        self.assertEqual((code, found["gates"][0]["verdict"]), (1, "skipped"))

    def test_a_gate_that_hangs_is_red_after_its_limit(self) -> None:
        def hang(ctx: Context) -> None:
            ctx.note("began", True)
            time.sleep(60)

        code, found, _ = self.run_gate(gate(hang, limit_s=0.2), "--strict")
        self.assertEqual(code, 1)
        self.assertIn("did not end within", found["gates"][0]["reason"])

    def test_a_gate_that_breaks_is_red(self) -> None:
        code, found, _ = self.run_gate(gate(lambda ctx: ctx.no_such_thing()), "--strict")
        self.assertEqual(code, 1)
        self.assertIn("the gate itself broke: AttributeError", found["gates"][0]["reason"])

    def test_a_poll_that_never_holds_is_red_and_names_what_was_missing(self) -> None:
        def wait(ctx: Context) -> None:
            ctx.poll("the door", 0.1, lambda: ctx.expect(False, "still shut"), every=0.02)

        _, found, _ = self.run_gate(gate(wait), "--strict")
        self.assertRegex(found["gates"][0]["reason"], "the door not within .* still shut")


class SelfTest(Running):
    def faulty(self, reason: str, expect: str) -> Dict[int, Gate]:
        """A gate that turns red with `reason` when the fault is planted."""

        @contextmanager
        def plant(ctx: Context) -> Iterator[None]:
            ctx.planted["fault"] = True
            yield

        def run(ctx: Context) -> None:
            ctx.note("looked", True)
            ctx.expect(not ctx.planted, reason)

        return gate(run, (Control("a fault", plant, expect),))

    def test_a_fault_that_is_seen_for_its_reason_passes(self) -> None:
        code, found, _ = self.run_gate(self.faulty("the password is wrong", "password"), "--self-test")
        self.assertEqual((code, found["gates"][0]["controls"][0]["seen"]), (0, True))

    def test_a_control_that_stays_green_fails_also_without_strict(self) -> None:
        code, found, printed = self.run_gate(gate(green, (Control("no fault", plant_nothing, "x"),)), "--self-test")
        self.assertEqual((code, found["verdict"]), (1, "BLIND"))
        self.assertIn("no fault", printed)

    def test_red_for_another_reason_fails(self) -> None:
        code, _, _ = self.run_gate(self.faulty("something did not answer", "password"), "--self-test")
        self.assertEqual(code, 1)

    def test_a_gate_that_breaks_under_its_fault_fails(self) -> None:
        def run(ctx: Context) -> None:
            ctx.note("looked", True)
            if ctx.planted:
                raise KeyError("password")

        broken = self.faulty("", "password")[1]
        code, found, _ = self.run_gate(gate(run, tuple(broken.controls)), "--self-test")
        self.assertEqual((code, found["gates"][0]["controls"][0]["seen"]), (1, False))

    def test_a_gate_without_a_control_does_not_count(self) -> None:
        code, found, _ = self.run_gate(gate(green), "--self-test", "--strict")
        self.assertEqual(code, 1)
        self.assertIn("no red control", found["gates"][0]["reason"])

    def test_a_gate_that_is_red_anyway_proves_nothing_about_its_faults(self) -> None:
        code, found, _ = self.run_gate(gate(red, (Control("a fault", plant_nothing, "the reason"),)), "--self-test")
        self.assertEqual((code, found["gates"][0]["controls"][0]["seen"]), (1, False))


class Exact(Running):
    """`--exact`: other gates run under the same fault."""

    def gates(self, also: Tuple[int, ...] = (), sound: bool = True, inside: bool = False) -> Dict[int, Gate]:
        there: List[bool] = []

        @contextmanager
        def plant(_ctx: Context) -> Iterator[None]:
            there.append(True)
            yield
            there.clear()

        def sees(ctx: Context) -> None:
            ctx.note("looked", True)
            ctx.expect(not there, "the fault")

        def suffers(ctx: Context) -> None:
            ctx.note("looked", True)
            ctx.expect(sound and not there, "it suffers")

        own = gate(sees, (Control("a fault", plant, "the fault", also=also, inside=inside),))
        beside = [Gate(2, "suffers", "always", suffers, (), needs=NOTHING, beside=True),
                  Gate(3, "immune", "always", green, (), needs=NOTHING, beside=True)]
        return {**own, **{each.number: each for each in beside}}

    def test_a_fault_that_turns_another_gate_red_fails(self) -> None:
        code, found, printed = self.run_gate(self.gates(), "--gate", "1", "--self-test", "--exact")
        control = found["gates"][0]["controls"][0]
        self.assertEqual((code, found["verdict"], control["seen"], control["strays"]), (1, "INEXACT", True, [2]))
        self.assertEqual(control["others"], {"2": "red: it suffers", "3": "green"})
        self.assertIn("STRAY  gate 1, a fault: gate 2 is red: it suffers", printed)

    def test_a_fault_may_say_which_gates_it_turns_red_too(self) -> None:
        code, found, _ = self.run_gate(self.gates(also=(2,)), "--gate", "1", "--self-test", "--exact")
        self.assertEqual((code, found["verdict"]), (0, "GREEN"))

    def test_a_gate_that_is_red_without_the_fault_is_not_compared(self) -> None:
        code, found, _ = self.run_gate(self.gates(sound=False), "--gate", "1", "--self-test", "--exact")
        self.assertEqual((code, found["gates"][0]["controls"][0]["others"]), (0, {"3": "green"}))

    def test_no_other_gate_runs_beside_a_fault_that_is_only_inside_its_gate(self) -> None:
        code, found, _ = self.run_gate(self.gates(inside=True), "--gate", "1", "--self-test", "--exact")
        control = found["gates"][0]["controls"][0]
        self.assertEqual((code, control["seen"], control["inside"], control["others"]), (0, True, True, {}))
        with self.assertRaisesRegex(ValueError, "only inside its gate"):
            self.gates(inside=True, also=(2,))

    def test_without_exact_no_other_gate_runs(self) -> None:
        code, found, _ = self.run_gate(self.gates(), "--gate", "1", "--self-test")
        self.assertEqual((code, found["gates"][0]["controls"][0]["others"]), (0, {}))


class CleanUp(unittest.TestCase):
    def test_a_signal_undoes_everything_and_is_no_success(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                program = textwrap.dedent(f"""
                    import sys, time, pathlib
                    from gate import Gate
                    from gate.cli import main
                    from gate.model import NOTHING
                    folder = pathlib.Path({folder!r})
                    def run(ctx):
                        ctx.note("began", True)
                        ctx.defer(lambda: (folder / "undone").touch())
                        (folder / "began").touch()
                        time.sleep(60)
                    gates = {{1: Gate(1, "sample", "never", run, [], needs=NOTHING)}}
                    sys.exit(main(["--strict", "--logs", str(folder)], gates))
                """)
                environment = dict(os.environ, PYTHONPATH=str(TOOLS))
                child = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)
                ends = time.monotonic() + 60
                while not (Path(folder) / "began").exists() and time.monotonic() < ends:
                    time.sleep(0.01)
                child.send_signal(number)
                printed, _ = child.communicate(timeout=60)
                self.assertEqual(child.returncode, 1)
                self.assertTrue((Path(folder) / "undone").exists())
                self.assertIn(f"interrupted by {number.name}", printed)


class Catalogue(unittest.TestCase):
    def test_every_gate_has_a_red_control_and_says_what_it_proves(self) -> None:
        from gate import catalogue

        found: List[Gate] = list(catalogue.load().values())
        self.assertTrue(found)
        for each in found:
            with self.subTest(each.number):
                self.assertTrue(each.controls)
                self.assertTrue(each.passes_when)


if __name__ == "__main__":
    unittest.main()
