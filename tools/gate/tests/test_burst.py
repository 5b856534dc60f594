"""How many jobs of a burst one rate limit admits."""

import unittest

from gate.burst import BURST, RPS, bounds


class Bounds(unittest.TestCase):
    def test_one_limit_is_within_them_and_a_limit_of_each_gateway_is_not(self) -> None:
        low, high = bounds(2.0, 2.1)
        self.assertTrue(low <= BURST + RPS * 2 <= high)
        self.assertGreater(2 * BURST + 2 * RPS * 2, high)
        self.assertLess(0.94 * (BURST + RPS * 2), low)

    def test_an_answer_that_came_late_does_not_ask_for_more(self) -> None:
        self.assertEqual(bounds(2.0, 2.1)[0], bounds(2.0, 30.0)[0])


if __name__ == "__main__":
    unittest.main()
