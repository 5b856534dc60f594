"""The reader of expressions finds the same metrics as a real parser, and refuses what it does not know."""

import unittest

from dashboards import promql, series


class ReadTest(unittest.TestCase):
    def test_selectors_and_groups_are_found_between_functions_and_keywords(self) -> None:
        text = 'sum by (topic, le) (rate(a_bucket{x="1",y!~"b|c"}[5m] offset 1h)) / on (topic) group_left () up > bool 3'
        expression = promql.read(text)
        self.assertEqual([str(s) for s in expression.selectors], ['a_bucket{x="1",y!~"b|c"}', "up"])
        self.assertEqual(expression.groups, [["topic", "le"], ["topic"], []])

    def test_labels_that_an_expression_makes_are_known(self) -> None:
        text = 'label_replace(max by (job) (label_replace(m{a="b"}, "inner", "$1", "a", "(.+)")), "outer", "x", "", "")'
        self.assertEqual(promql.read(text).made, {"inner", "outer"})

    def test_words_inside_strings_and_comments_are_no_metrics(self) -> None:
        self.assertEqual([s.metric for s in promql.read('vector(1) # up\n or m{l="sum by up"}').selectors], ["m"])

    def test_a_selector_without_a_name_is_refused(self) -> None:
        with self.assertRaises(promql.Unreadable):
            promql.read('{__name__=~"muster_.*"}')

    def test_variables_of_grafana_are_filled_longest_first(self) -> None:
        self.assertEqual(promql.fill('a{t=~"$topic_x"}[$t]', {"t": "1m", "topic_x": "b"}), 'a{t=~"b"}[1m]')

    def test_the_same_metrics_as_a_real_parser(self) -> None:
        try:
            import promql_parser  # type: ignore[import-not-found]
        except ImportError:
            self.skipTest("promql-parser is not installed: run it by tools/scripts/python_tools.sh")
        from dashboards import expressions

        found = expressions.rules() + expressions.panels()
        self.assertGreater(len(found), 60)
        for each in found:
            text = promql.fill(each.text, expressions.VARIABLES)
            tree = promql_parser.parse(text)
            self.assertEqual({s.metric for s in promql.read(text).selectors}, names(tree), each.text)


def names(node: object) -> set:
    """The metric names in a tree of promql_parser."""
    found = set()
    name = getattr(node, "name", None)
    if type(node).__name__ == "VectorSelector" and name:
        found.add(name)
    for part in ("lhs", "rhs", "expr", "args", "vector_selector", "vs", "param"):
        inner = getattr(node, part, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None and not isinstance(each, (str, int, float)):
                found |= names(each)
    return found


class SeriesTest(unittest.TestCase):
    def test_an_unknown_metric_and_an_unknown_label_are_named(self) -> None:
        known = series.known({})
        self.assertEqual(series.faults(promql.read("muster_leeder"), known), ["unknown metric muster_leeder"])
        self.assertEqual(
            series.faults(promql.read('muster_leader{lop="x"}'), known), ["muster_leader has no label lop"]
        )
        self.assertEqual(
            series.faults(promql.read("sum by (lop) (muster_leader)"), known), ["no metric here has the label lop"]
        )
        self.assertEqual(series.faults(promql.read('sum by (loop) (muster_leader{pod="a"})'), known), [])

    def test_a_histogram_is_known_by_its_parts_only(self) -> None:
        known = series.known({})
        self.assertIn("muster_job_wait_seconds_bucket", known)
        self.assertNotIn("muster_job_wait_seconds", known)


if __name__ == "__main__":
    unittest.main()
