"""What gate 19 measures of a take-over, and how it leaves the replicas that it has ended."""

import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Dict, List

from gate.context import Context
from gate.gates.g19_ha import all_up_again
from gate.leaders import SHARDS, Leader, TakeOver, doomed, locks
from gate.model import Red
from gate.stacks.base import Replica, Response

OLD = Leader("scheduler-1", "a", 7)


class Redis:
    """A stack with one lock: its holder died, and `after_s` later another one holds it under this fence."""

    def __init__(self, lasts_s: float, after_s: float, fence: int = 8) -> None:
        began = time.monotonic()
        self.expires, self.taken, self.fence = began + lasts_s, began + after_s, fence

    def redis(self, verb: str, _key: str) -> str:
        now = time.monotonic()
        if verb == "PTTL":
            return str(int((self.expires - now) * 1000)) if now < self.expires else "-2"
        if now >= self.taken:
            return f"scheduler-2~b:{self.fence}"
        return "scheduler-1~a:7" if now < self.expires else ""


def context(stack: Any) -> Context:
    return Context(stack, Path(tempfile.gettempdir()), 1, "test")


class TakeOvers(unittest.TestCase):
    def watch(self, stack: Redis) -> TakeOver:
        watch = TakeOver(context(stack), {"reconciler": "lock"}, {"reconciler": OLD})
        watch.start()
        return watch

    def test_the_seconds_after_the_kill_and_after_the_lock(self) -> None:
        watch = self.watch(Redis(lasts_s=0.4, after_s=0.6))
        took = watch.seconds()["reconciler"]
        self.assertTrue(0.6 <= took < 2, took)
        self.assertAlmostEqual(watch.after_the_lock()["reconciler"], took - 0.4, delta=0.05)

    def test_a_fence_that_does_not_rise_is_red(self) -> None:
        with self.assertRaisesRegex(Red, "the fence went from 7 to 7"):
            self.watch(Redis(lasts_s=0.1, after_s=0.2, fence=7)).seconds()


class Api:
    """A stack with one leader loop, one loop with shards, and one loop without a lock."""

    def api(self, _method: str, _path: str, timeout: float) -> Response:
        rows = [
            {"loop": "reconciler", "lock": "muster:r"}, {"loop": "config watch"},
            {"loop": "run reconciler", "lock": "muster:w:<shard>", "shards": [0, 2]},
            {"loop": "run reconciler", "lock": "muster:w:<shard>", "shards": []},
        ]
        return Response(200, {}, {"items": rows})


class Shards(unittest.TestCase):
    def test_each_shard_of_a_loop_has_a_lock_of_its_own(self) -> None:
        found = locks(context(Api()))
        self.assertEqual(len(found), 1 + len(SHARDS))
        self.assertEqual((found["reconciler"], found["run reconciler, shard a"]), ("muster:r", "muster:w:a"))

    def test_one_leader_of_every_loop_dies_and_one_of_those_that_share_a_loop(self) -> None:
        held = {
            "reconciler": OLD, "retention": Leader("gateway-1", "c", 8),
            "run reconciler, shard 0": Leader("workflow-1", "d", 9), "run reconciler, shard 1": Leader("workflow-2", "e", 9),
        }
        self.assertEqual(doomed(held, "scheduler-1"), {"scheduler-1", "gateway-1", "workflow-2"})
        self.assertEqual(doomed(held, "workflow-1"), {"scheduler-1", "gateway-1", "workflow-1"})
        self.assertEqual(doomed({}, "scheduler-2"), {"scheduler-2"})


class Stack:
    """Replicas by state; starting one makes it run."""

    def __init__(self, **states: str) -> None:
        self.states: Dict[str, str] = states
        self.started: List[str] = []
        self.waited = 0

    def replica(self, name: str) -> Replica:
        return Replica(name, "gateway", 1, state=self.states[name])

    def start(self, replica: Replica) -> None:
        self.started.append(replica.name)

    def wait_ready(self, _seconds: float) -> float:
        self.waited += 1
        return 0.0


class Afterwards(unittest.TestCase):
    def left(self, **states: str) -> Stack:
        stack = Stack(**states)
        all_up_again(context(stack), [stack.replica(name) for name in states])
        return stack

    def test_what_is_down_is_started_and_waited_for(self) -> None:
        stack = self.left(one="exited", two="running")
        self.assertEqual((stack.started, stack.waited), (["one"], 1))

    def test_what_runs_is_left_alone(self) -> None:
        stack = self.left(one="running", two="running")
        self.assertEqual((stack.started, stack.waited), ([], 0))


if __name__ == "__main__":
    unittest.main()
