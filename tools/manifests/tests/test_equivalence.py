"""Chart and Kustomize make the same objects, and a difference of any kind would be seen."""

import unittest

from manifests import equivalence, faults, render
from manifests.objects import Objects

from .test_faults import rendered


def compare(left: Objects, right: Objects) -> list:
    return [str(each) for each in equivalence.differences("kustomize", left, "chart", right)]


class Equivalence(unittest.TestCase):
    def test_pairs_are_equal(self) -> None:
        for kustomize, chart in render.PAIRS:
            with self.subTest(chart):
                self.assertEqual(compare(rendered(kustomize), rendered(chart)), [])
                self.assertGreater(len(rendered(chart).all), 10)

    def test_every_planted_fault_is_a_difference(self) -> None:
        """What a check would find in one form only is at least a difference to the other."""
        kustomize, chart = rendered("everything"), rendered("chart with everything")
        for fault in faults.FAULTS:
            if fault.name in ("namespace without Pod Security", "object twice"):
                continue  # the chart makes no namespace; a second object of the same name is no other object
            with self.subTest(fault.name):
                changed = kustomize.copy()
                fault.plant(changed)
                self.assertNotEqual(compare(changed, chart), [])

    def test_a_missing_object_is_named(self) -> None:
        changed = rendered("chart").copy()
        changed.all = [obj for obj in changed.all if obj["metadata"]["name"] != "redis-healer"]
        self.assertIn("Deployment/redis-healer: is in kustomize, but not in chart [equivalence]", compare(rendered("overlays/ha"), changed))


if __name__ == "__main__":
    unittest.main()
