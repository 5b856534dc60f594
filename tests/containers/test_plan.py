"""deploy/redis/plan.awk: what a Redis cluster needs next, for every state that it can be found in.

No server runs here: a `Cluster` writes what six nodes would say, and awk gives the plan.
"""

from __future__ import annotations

import shutil
import subprocess
import unittest
from dataclasses import dataclass, field
from pathlib import Path

PLAN = Path(__file__).resolve().parents[2] / "deploy/redis/plan.awk"
# The image has busybox's awk, this machine perhaps another one: the plan must not depend on it.
AWKS = [["awk"]] + ([["busybox", "awk"]] if shutil.which("busybox") else [])
NAMES = [f"redis-{n}" for n in range(1, 7)]
RANGES = {"redis-1": "0-5460", "redis-2": "5461-10921", "redis-3": "10922-16383"}
REPLICAS = {"redis-4": "redis-1", "redis-5": "redis-2", "redis-6": "redis-3"}


def node_id(name: str) -> str:
    """40 hex digits that differ by name."""
    return (name.encode().hex() + "0" * 40)[:40]


@dataclass
class Cluster:
    """Six nodes: where they are, where the others believe them to be, and who owns what."""

    address: dict[str, str] = field(default_factory=lambda: {n: f"10.0.0.{i}:6379" for i, n in enumerate(NAMES, 1)})
    believed: dict[str, str] = field(default_factory=lambda: {n: f"10.0.0.{i}:6379" for i, n in enumerate(NAMES, 1)})
    slots: dict[str, str] = field(default_factory=lambda: dict(RANGES))
    masters: dict[str, str] = field(default_factory=lambda: dict(REPLICAS))
    down: set[str] = field(default_factory=set)
    alone: bool = False
    # Replicas that copy from an address where their primary is no more.
    stale: dict[str, str] = field(default_factory=dict)
    # Members that nobody wants any more: name to the slots that they still own.
    gone: dict[str, str] = field(default_factory=dict)

    def line(self, viewer: str, name: str) -> str:
        flags = "slave" if name in self.masters else "master"
        if name in self.gone:
            flags += ",fail"
        if viewer == name:
            flags = f"myself,{flags}"
        master = node_id(self.masters[name]) if name in self.masters else "-"
        address = self.believed.get(name, "10.0.0.99:6379")
        return f"view {viewer} {node_id(name)} {address}@16379 {flags} {master} 0 0 1 connected {self.slots.get(name, self.gone.get(name, ''))}"

    def plan(self, primaries: int = 3) -> list[str]:
        said = []
        for viewer in NAMES:
            said.append(f"node {viewer}")
            if viewer in self.down:
                continue
            said.append(f"addr {viewer} {self.address[viewer]}")
            if viewer in self.masters and not self.alone:
                said.append(f"follows {viewer} {self.stale.get(viewer, self.address[self.masters[viewer]])}")
            seen = [viewer] if self.alone else [*NAMES, *self.gone]
            said += [self.line(viewer, name) for name in seen]
        plans = [
            subprocess.run(
                [*awk, "-v", f"primaries={primaries}", "-f", str(PLAN)],
                input="\n".join(said) + "\n", capture_output=True, text=True, check=True,
            ).stdout.splitlines()
            for awk in AWKS
        ]
        # Every awk must give the same plan; only the order of a set may differ.
        assert all(sorted(plan) == sorted(plans[0]) for plan in plans), plans
        return plans[0]


class Plan(unittest.TestCase):
    def test_healthy_cluster_needs_nothing(self) -> None:
        self.assertEqual(Cluster().plan(), [])

    def test_a_replica_that_copies_from_an_old_address_is_told_its_primary_again(self) -> None:
        plan = Cluster(stale={"redis-5": "10.0.0.77:6379"}).plan()
        self.assertEqual(plan, [f"replicate redis-5 {node_id('redis-2')}"])

    def test_new_nodes_meet_first(self) -> None:
        plan = Cluster(slots={}, masters={}, alone=True).plan()
        self.assertEqual(len(plan), 30)
        self.assertTrue(all(step.startswith("meet ") for step in plan), plan)
        self.assertIn("meet redis-1 10.0.0.2 6379", plan)

    def test_nodes_that_met_get_slots(self) -> None:
        self.assertEqual(
            Cluster(slots={}, masters={}).plan(),
            ["slots redis-1 0 5460", "slots redis-2 5461 10921", "slots redis-3 10922 16383"],
        )

    def test_interrupted_handing_out_goes_on(self) -> None:
        self.assertEqual(
            Cluster(slots={"redis-1": "0-5460"}, masters={}).plan(),
            ["slots redis-2 5461 10921", "slots redis-3 10922 16383"],
        )

    def test_scattered_slots_count(self) -> None:
        scattered = {"redis-1": "0-5459 5460", "redis-2": "5461-10921", "redis-3": "10922-16383 [7->-abc]"}
        self.assertEqual(Cluster(slots=scattered).plan(), [])

    def test_every_primary_gets_one_replica(self) -> None:
        plan = Cluster(masters={}).plan()
        self.assertEqual(plan, [f"replicate {replica} {node_id(master)}" for replica, master in REPLICAS.items()])

    def test_missing_replica_goes_where_there_are_fewest(self) -> None:
        masters = {"redis-4": "redis-1", "redis-5": "redis-3"}
        self.assertEqual(Cluster(masters=masters).plan(), [f"replicate redis-6 {node_id('redis-2')}"])

    def test_all_new_addresses_are_met(self) -> None:
        cluster = Cluster(address={name: f"10.9.9.{n}:6379" for n, name in enumerate(NAMES, 1)})
        plan = cluster.plan()
        self.assertEqual(len(plan), 30)
        self.assertIn("meet redis-6 10.9.9.1 6379", plan)

    def test_one_new_address_is_met_by_all_others(self) -> None:
        cluster = Cluster()
        cluster.address["redis-2"] = "10.9.9.9:6379"
        self.assertEqual(sorted(cluster.plan()), [f"meet {n} 10.9.9.9 6379" for n in NAMES if n != "redis-2"])

    def test_a_node_that_is_away_changes_nothing(self) -> None:
        self.assertEqual(Cluster(down={"redis-2"}).plan(), [])
        self.assertEqual(Cluster(down={"redis-6"}, slots={}, masters={}).plan(), [])

    def test_a_member_that_is_gone_is_forgotten(self) -> None:
        plan = Cluster(gone={"old": ""}).plan()
        self.assertEqual(plan, [f"forget {name} {node_id('old')}" for name in NAMES])

    def test_slots_of_a_lost_node_are_kept_for_its_data(self) -> None:
        slots = {"redis-1": "0-5460", "redis-2": "5461-10921"}
        masters = {"redis-4": "redis-1", "redis-5": "redis-2"}
        plan = Cluster(slots=slots, masters=masters, gone={"old": "10922-16383"}).plan()
        self.assertEqual(len(plan), 1, plan)
        self.assertRegex(plan[0], f"^warn slots 10922-16383 belong to node {node_id('old')}")

    def test_forgotten_slots_go_to_an_empty_node(self) -> None:
        slots = {"redis-1": "0-5460", "redis-2": "5461-10921"}
        masters = {"redis-4": "redis-1", "redis-5": "redis-2"}
        self.assertEqual(Cluster(slots=slots, masters=masters).plan(), ["slots redis-3 10922 16383"])


if __name__ == "__main__":
    unittest.main()
