"""What gate 20 concludes from scrapes and from Prometheus' list of targets."""

import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict

from gate.context import Context
from gate.model import Red
from gate.stacks.base import Replica
from gate.targets import moment, one_pod_each, pod_of, targets_answer

AT = "2026-01-02T03:04:05.123456789Z"
ONE = Replica("gateway-1", "gateway", 1, target="gateway:9092")
TWO = Replica("gateway-2", "gateway", 2, target="gateway-2:9092")


class Scraped:
    """A stack whose replicas all have these metrics."""

    def __init__(self, text: str) -> None:
        self.text = text

    def scrape(self, _replica: Replica) -> str:
        return self.text


def context(text: str = "") -> Context:
    return Context(Scraped(text), Path(tempfile.gettempdir()), 1, "test")  # type: ignore[arg-type]


def target(replica: Replica, **fields: Any) -> Dict[str, Any]:
    labels = {"job": f"muster-{replica.service}", "instance": replica.target}
    return {"labels": labels, "health": "up", "lastError": "", "lastScrape": AT, **fields}


class Targets(unittest.TestCase):
    def test_a_dropped_target_is_named(self) -> None:
        targets_answer(context(), [ONE, TWO], [target(ONE), target(TWO)], moment(AT) - 1)
        with self.assertRaisesRegex(Red, r"gateway-2:9092 is not a target of Prometheus.*\['gateway:9092'\]"):
            targets_answer(context(), [ONE, TWO], [target(ONE)], 0)

    def test_a_target_that_is_down_or_was_not_scraped_yet_is_named(self) -> None:
        with self.assertRaisesRegex(Red, "gateway:9092 is down: connection refused"):
            targets_answer(context(), [ONE], [target(ONE, health="down", lastError="connection refused")], 0)
        with self.assertRaisesRegex(Red, "gateway:9092 was not scraped in this run yet"):
            targets_answer(context(), [ONE], [target(ONE)], moment(AT) + 1)

    def test_two_replicas_with_one_pod_are_named(self) -> None:
        one_pod_each(context(), {ONE: "gateway-1", TWO: "gateway-2"})
        with self.assertRaisesRegex(Red, "gateway-2:9092 and gateway:9092 have one pod, gateway-1"):
            one_pod_each(context(), {ONE: "gateway-1", TWO: "gateway-1"})

    def test_every_series_has_the_replicas_one_pod(self) -> None:
        self.assertEqual(pod_of(context('muster_a{pod="g"} 1\nmuster_b{x="y",pod="g"} 2\n'), ONE), "g")
        with self.assertRaisesRegex(Red, "has a series without pod"):
            pod_of(context('muster_a{pod="g"} 1\nmuster_b 2\n'), ONE)
        with self.assertRaisesRegex(Red, "should have one pod"):
            pod_of(context('muster_a{pod="g"} 1\nmuster_b{pod="h"} 2\n'), ONE)
