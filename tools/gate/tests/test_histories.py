"""The checker of histories and the judge of growth must see what is wrong: each wrong thing is shown to it."""

import unittest
from typing import Any, Dict, List

from gate.histories import History, _faults, _in_vain
from gate.samples import Sample, compare
from gate.workers import Execution


def history(*events: str, worker: str = "w1") -> History:
    """Events by name; a start may name its attempt: `start:2`."""
    states = {"submit": "pending", "start": "running", "succeed": "succeeded", "fail": "failed", "rescue": "retrying",
              "wake": "pending", "release": "scheduled"}
    steps: List[Dict[str, Any]] = []
    for event in events:
        name, _, attempt = event.partition(":")
        steps.append({"event": name, "state": states[name], "attempt": int(attempt or 1), "note": worker if name == "start" else ""})
    return History("j", steps)


def ran(attempt: int = 1, fence: int = 7) -> Execution:
    return Execution("j", attempt, fence, "w1")


class Histories(unittest.TestCase):
    def test_a_plain_job_holds(self) -> None:
        self.assertEqual(_faults(history("submit", "start", "succeed"), [ran()]), [])

    def test_a_second_attempt_holds(self) -> None:
        steps = history("submit", "start:1", "rescue", "wake", "start:2", "succeed")
        self.assertEqual(_faults(steps, [ran(1, 7), ran(2, 9)]), [])
        # A worker may die after it took the job and before it wrote its line.
        self.assertEqual(_faults(steps, [ran(2, 9)]), [])

    def test_what_is_wrong_is_seen(self) -> None:
        cases = {
            "ended 2 times": (history("submit", "start", "succeed", "fail"), [ran()]),
            "ended 0 times": (history("submit", "start"), [ran()]),
            "executed 2 times in one attempt": (history("submit", "start", "succeed"), [ran(), ran()]),
            "ran once more than recorded": (history("submit", "start", "succeed"), [ran(1, 7), ran(1, 8)]),
            "never executed by the worker's log": (history("submit", "start", "succeed"), []),
            "without a start": (history("submit", "succeed"), []),
            "was started 6 times": (history("submit", *(f"start:{n}" for n in range(1, 7)), "succeed"), [ran(n, n) for n in range(1, 7)]),
        }
        for wanted, (steps, runs) in cases.items():
            with self.subTest(wanted):
                self.assertTrue(any(wanted in fault for fault in _faults(steps, runs)), _faults(steps, runs))

    def test_only_the_dead_may_be_tried_again(self) -> None:
        again = history("submit", "start:1", "rescue", "wake", "start:2", "succeed")
        self.assertEqual(len(_in_vain([again], set())), 1)
        self.assertEqual(_in_vain([again], {"w1"}), [])
        self.assertEqual(_in_vain([history("submit", "start:1", "release", "wake", "start:1", "succeed")], set()), [])


class Growth(unittest.TestCase):
    def samples(self, name: str, values: List[float]) -> List[Sample]:
        return [Sample(float(n), {name: value}) for n, value in enumerate(values)]

    def grew(self, name: str, values: List[float], bounded: Dict[str, float]) -> bool:
        return any(each.grew for each in compare(self.samples(name, values), bounded))

    def test_growth_is_seen_and_a_level_is_none(self) -> None:
        self.assertTrue(self.grew("descriptors of gateway-1", [20.0 + n for n in range(40)], {}))
        self.assertFalse(self.grew("descriptors of gateway-1", [20.0 + n % 3 for n in range(40)], {}))
        # A warm-up is no growth.
        self.assertFalse(self.grew("RSS of gateway-1", [30e6] * 8 + [90e6] * 32, {}))
        self.assertTrue(self.grew("RSS of gateway-1", [30e6 + n * 2e6 for n in range(40)], {}))

    def test_what_is_kept_on_purpose_has_a_bound(self) -> None:
        rising = [100.0 * n for n in range(40)]
        self.assertFalse(self.grew("keys muster:job", rising, {"keys muster:job": 4000}))
        self.assertTrue(self.grew("keys muster:job", rising, {"keys muster:job": 2000}))


if __name__ == "__main__":
    unittest.main()
