"""The check finds a series of the contract that was renamed, has lost a label, or is reported by other replicas."""

import unittest
from typing import Dict

from dashboards import contract, series


def without(name: str) -> Dict[str, series.Series]:
    return {other: each for other, each in series.known({}).items() if other != name}


class ContractTest(unittest.TestCase):
    def test_the_catalogue_keeps_the_contract(self) -> None:
        self.assertEqual(contract.broken(series.known({})), [])

    def test_each_renamed_series_is_found(self) -> None:
        for name in contract.PROMISED:
            series_name = name + "_bucket" if contract.PROMISED[name].histogram else name
            with self.subTest(name):
                known = without(series_name)
                known[f"{series_name}_renamed"] = series.known({})[series_name]._replace(name=f"{series_name}_renamed")
                self.assertRegex("\n".join(contract.broken(known)), f"promises {name}\\b.*no process reports it")

    def test_a_lost_label_is_found(self) -> None:
        known = series.known({})
        known["muster_jobs_total"] = known["muster_jobs_total"]._replace(labels=frozenset({"topic", "pod"}))
        self.assertEqual(contract.broken(known), ["the contract promises muster_jobs_total with the label state, which it does not have"])

    def test_a_sum_that_every_replica_would_report_is_found(self) -> None:
        known = series.known({})
        known["muster_queue_depth"] = known["muster_queue_depth"]._replace(teller="Every")
        self.assertIn("muster_queue_depth is reported by Every", "\n".join(contract.broken(known)))

    def test_a_promised_series_is_never_rare(self) -> None:
        known = series.known({})
        known["muster_leader"] = known["muster_leader"]._replace(rare="appears with the first fault")
        self.assertIn("muster_leader is in the contract", "\n".join(contract.broken(known)))


if __name__ == "__main__":
    unittest.main()
