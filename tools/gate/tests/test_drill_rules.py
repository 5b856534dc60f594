"""The drill's copy of the rules differs from them only as it promises, and every alert has a drill."""

import unittest

from gate import drill_rules
from gate.drills import BATCHES, CLUSTER

RULE = """groups:
  - name: g
    rules:
      - alert: MusterSubmitsLate
        expr: max(muster_submit_lag_seconds) > 20
        for: 15s
      - alert: MusterOther
        expr: increase(x[10m]) > 20 and y > 200
        for: 1m
"""


class DrillRulesTest(unittest.TestCase):
    def test_times_and_listed_limits_change_and_nothing_else(self) -> None:
        found = drill_rules.shortened(RULE)
        self.assertIn("max(muster_submit_lag_seconds) > 3\n        for: 2s", found)
        self.assertIn("increase(x[30s]) > 20 and y > 200\n        for: 2s", found)

    def test_a_limit_that_is_not_there_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "MusterSubmitsLate.*out of date"):
            drill_rules.shortened(RULE.replace("seconds) > 20", "seconds) > 25"))

    def test_the_red_control_leaves_out_one_alert_only(self) -> None:
        found = drill_rules.shortened(RULE, without="MusterSubmitsLate")
        self.assertNotIn("MusterSubmitsLate", found)
        self.assertIn("MusterOther", found)

    def test_a_deaf_alert_is_loaded_and_waits_for_a_day(self) -> None:
        found = drill_rules.shortened(RULE, deaf="MusterSubmitsLate")
        self.assertIn("- alert: MusterSubmitsLate\n        expr: max(muster_submit_lag_seconds) > 20\n        for: 1d", found)
        self.assertIn("y > 200\n        for: 2s", found)
        with self.assertRaisesRegex(ValueError, "has no `for`"):
            drill_rules.shortened(RULE.replace("        for: 15s\n", ""), deaf="MusterSubmitsLate")

    def test_the_deaf_alerts_of_the_controls_can_be_made_deaf(self) -> None:
        for name in ("MusterKeyExpiring", "MusterNatsReplicasLagging"):
            self.assertEqual("".join(drill_rules.shortened(p.read_text(), deaf=name) for p in drill_rules.RULES.glob("*.yml")).count("for: 1d"), 1)

    def test_the_real_rules_can_be_shortened(self) -> None:
        for path in drill_rules.RULES.glob("*.yml"):
            self.assertEqual(drill_rules.shortened(path.read_text()).count("- alert:"), path.read_text().count("- alert:"))

    def test_every_alert_has_a_drill_and_every_drill_an_alert(self) -> None:
        drilled = {alert for batch in BATCHES + CLUSTER for drill in batch for alert in drill.alerts}
        self.assertEqual(drilled, set(drill_rules.names()))


if __name__ == "__main__":
    unittest.main()
