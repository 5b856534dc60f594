"""What gate 26 takes for a clear refusal."""

import tempfile
import unittest
from pathlib import Path
from typing import Any, List

from gate.context import Context
from gate.gates import g26_full
from gate.load import Answer
from gate.model import Red
from gate.stacks.base import Response


def answer(status: int, code: str = "", retry_after: str = "2", deferred: bool = False) -> Answer:
    return Answer(0.0, 0.1, status, code, retry_after if status == 503 else None, deferred, "http://gateway")


class Answers:
    """A load that got these answers."""

    def __init__(self, answers: List[Answer]) -> None:
        self.answers = answers

    def since(self, _at: float) -> List[Answer]:
        return self.answers


class Refusing:
    """A stack whose gateways refuse every submit like this."""

    def __init__(self, refusal: Response) -> None:
        self.refusal = refusal

    def gateways(self) -> List[str]:
        return ["http://gateway"]

    def api(self, *_words: Any, **_options: Any) -> Response:
        return self.refusal


def context(stack: Any = None) -> Context:
    return Context(stack, Path(tempfile.gettempdir()), 1, "test")


class Refusals(unittest.TestCase):
    def judge(self, *answers: Answer) -> None:
        g26_full._refused_clearly(context(), "NATS full", Answers(list(answers)), 0.0)  # type: ignore[arg-type]

    def test_documented_codes_and_deferred_submits_are_clear(self) -> None:
        self.judge(answer(202), answer(503, "store_unavailable"), answer(503, "overloaded"))
        self.judge(answer(202, deferred=True))

    def test_another_code_is_red(self) -> None:
        for code in ("internal", ""):
            with self.assertRaisesRegex(Red, "503 came with another code than store_unavailable or overloaded"):
                self.judge(answer(503, "store_unavailable"), answer(503, code))

    def test_a_refusal_without_retry_after_is_red(self) -> None:
        with self.assertRaisesRegex(Red, "without Retry-After"):
            self.judge(answer(503, "store_unavailable", retry_after=""))

    def test_a_store_that_is_not_full_proves_nothing(self) -> None:
        with self.assertRaisesRegex(Red, "nothing was refused or deferred"):
            self.judge(answer(202))


class FirstRefusal(unittest.TestCase):
    def refused(self, status: int, **body: str) -> str:
        stack = Refusing(Response(status, {"retry-after": "2"}, body))
        return g26_full._fill(context(stack), "topic", 503)[1]

    def test_the_code_and_a_detail_that_says_full_are_wanted(self) -> None:
        full = "the store is full: it has reached its memory limit and takes nothing new"
        self.assertEqual(self.refused(503, code="store_unavailable", detail=full), "503 store_unavailable")
        with self.assertRaisesRegex(Red, "reported as internal, not as store_unavailable"):
            self.refused(503, code="internal", detail=full)
        with self.assertRaisesRegex(Red, "with a detail that says so"):
            self.refused(503, code="store_unavailable", detail="the store does not answer")
        with self.assertRaisesRegex(Red, "reported as 500 internal"):
            self.refused(500, code="internal", detail=full)


if __name__ == "__main__":
    unittest.main()
