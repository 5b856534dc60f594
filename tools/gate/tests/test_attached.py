"""What the pids of a state file say about a drill."""

import unittest

from gate.attached import DRILLS, SERVICES, replaced

BEFORE = {name: n for n, name in enumerate([*SERVICES, "redis", "nats"])}


class Replaced(unittest.TestCase):
    def judge(self, drill: str, *new: str) -> str:
        return replaced(BEFORE, {name: pid + (100 if name in new else 0) for name, pid in BEFORE.items()}, DRILLS[drill])

    def test_what_each_drill_replaces(self) -> None:
        for drill, new in {"worker": [], "gateway": ["gateway-2"], "leader": ["scheduler-1", "scheduler-2"], "rolling": SERVICES}.items():
            with self.subTest(drill):
                self.assertEqual(self.judge(drill, *new), "")

    def test_a_drill_that_killed_nothing_is_found(self) -> None:
        for drill in ("gateway", "leader", "rolling"):
            with self.subTest(drill):
                self.assertIn("no process was replaced", self.judge(drill))

    def test_more_or_less_than_it_should_is_found(self) -> None:
        self.assertIn("['gateway-1', 'gateway-2'] was replaced", self.judge("gateway", "gateway-1", "gateway-2"))
        self.assertIn("['scheduler-1'] was replaced", self.judge("leader", "scheduler-1"))
        self.assertIn("['redis'] was replaced; no process should have been", self.judge("worker", "redis"))
        self.assertIn("before it named", replaced(BEFORE, {**BEFORE, "gateway-3": 9}, []))


if __name__ == "__main__":
    unittest.main()
