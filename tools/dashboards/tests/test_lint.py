"""The linter sees each fault that it is there for. Each test breaks one thing in good dashboards."""

import copy
import unittest
from typing import Any, Callable, Dict

from dashboards import series
from dashboards.boards import ALL
from dashboards.lint import lint
from dashboards.model import render

RECORDINGS = {"muster:jobs_ended:rate1m": "sum by (topic, state) (rate(muster_jobs_total[1m]))"}


def broken(change: Callable[[Dict[str, Any]], None]) -> str:
    """What the linter says of the topic board after the change, and did not say before."""
    board = render(next(each for each in ALL if each.uid == "muster-topic"))
    known = series.known(RECORDINGS)
    before = set(lint({"b": copy.deepcopy(board)}, known))
    change(board)
    return "\n".join(set(lint({"b": board}, known)) - before)


class LintTest(unittest.TestCase):
    def test_a_missing_legend(self) -> None:
        self.assertIn("no legend", broken(lambda b: b["panels"][1]["targets"][0].update(legendFormat="")))

    def test_a_missing_description(self) -> None:
        self.assertIn("no description", broken(lambda b: b["panels"][1].update(description="")))

    def test_an_unknown_unit(self) -> None:
        self.assertIn("unknown unit 'secs'", broken(lambda b: b["panels"][1]["fieldConfig"]["defaults"].update(unit="secs")))

    def test_a_fixed_datasource(self) -> None:
        self.assertIn("not the variable", broken(lambda b: b["panels"][1].update(datasource={"uid": "abc"})))

    def test_no_variable_for_the_datasource(self) -> None:
        self.assertIn("must choose the datasource", broken(lambda b: b["templating"]["list"].pop(0)))

    def test_two_panels_with_one_id(self) -> None:
        self.assertIn("the id 2", broken(lambda b: b["panels"][2].update(id=2)))

    def test_panels_that_overlap(self) -> None:
        self.assertIn("overlap", broken(lambda b: b["panels"][2]["gridPos"].update(x=6)))

    def test_a_panel_beside_the_page(self) -> None:
        self.assertIn("wider than the page", broken(lambda b: b["panels"][2]["gridPos"].update(w=20)))

    def test_a_metric_that_no_process_reports(self) -> None:
        change = lambda b: b["panels"][1]["targets"][0].update(expr="sum(muster_jbos_total)")  # noqa: E731
        self.assertIn("unknown metric muster_jbos_total", broken(change))

    def test_a_label_that_the_metric_does_not_have(self) -> None:
        change = lambda b: b["panels"][1]["targets"][0].update(expr="sum by (tpoic) (muster_jobs_total)")  # noqa: E731
        self.assertIn("the label tpoic", broken(change))

    def test_a_variable_that_the_page_does_not_have(self) -> None:
        change = lambda b: b["panels"][1]["targets"][0].update(expr='muster_jobs_total{topic="$topics"}')  # noqa: E731
        self.assertIn("unknown variable $topics", broken(change))

    def test_two_boards_with_one_uid(self) -> None:
        board = render(ALL[0])
        self.assertIn("two dashboards have the uid", "\n".join(lint({"a": board, "b": board}, series.known({}))))


if __name__ == "__main__":
    unittest.main()
