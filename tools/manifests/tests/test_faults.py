"""Every planted fault is found, by the check and for the reason that name it; healthy objects are not."""

import functools
import unittest

from manifests import checks, faults, render
from manifests.__main__ import examine
from manifests.objects import Objects

# The twenty of the project's definition, by name: none may go missing from the table.
TWENTY = (
    "unknown field", "replicas as a string", "env value as a number", "selector that does not match", "PDB with both fields",
    "HPA min above max", "port name over 15 letters", "probe period -1", "request above limit", "quantity 64mb",
    "mount without volume", "name Gw", "bad spread enum", "claim without access mode", "preStop longer than the grace",
    "policy/v1beta1", "duplicate env", "no securityContext", "root user", "probe on a port that does not exist",
)


@functools.lru_cache(maxsize=None)
def rendered(variant: str) -> Objects:
    """Rendered once for all tests."""
    return render.variant(variant).render()


class Faults(unittest.TestCase):
    def test_the_twenty_are_planted(self) -> None:
        self.assertEqual(sorted(fault.name for fault in faults.REFUSED), sorted(TWENTY))

    def test_names_are_unique(self) -> None:
        names = [fault.name for fault in faults.FAULTS]
        self.assertEqual(len(set(names)), len(names))

    def test_every_check_has_a_fault_that_it_finds(self) -> None:
        with_fault = {fault.check for fault in faults.FAULTS}
        all_checks = {check.__name__.replace("_", "-") for check in checks.CHECKS}
        self.assertEqual(all_checks - with_fault, set())

    def test_healthy_objects_are_clean(self) -> None:
        for variant in render.VARIANTS:
            with self.subTest(variant.name):
                self.assertEqual([str(finding) for finding in examine(rendered(variant.name))], [])

    def test_each_fault_is_found_for_its_reason(self) -> None:
        """In the objects of Kustomize and in those of the chart."""
        for variant in ("everything", "chart with everything"):
            for fault in faults.FAULTS:
                if variant != fault.variant and fault.check == "namespace":
                    continue  # the chart's user makes the namespace
                with self.subTest(fault.name, variant=variant):
                    objects = rendered(variant).copy()
                    fault.plant(objects)
                    found = examine(objects)
                    self.assertTrue(fault.found(found), "not found; instead:\n" + "\n".join(map(str, found)))
                    # A check that objects to everything would find every fault, and help no reader.
                    self.assertLessEqual(len(found), 16)


if __name__ == "__main__":
    unittest.main()
