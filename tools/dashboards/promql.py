"""Finds the selectors and labels in a PromQL expression.

Not a whole parser: it knows as much of the grammar as it needs to tell metric names from functions,
keywords and labels. It fails safe: a word that it does not understand counts as a metric, and an
unknown metric is an error for those who call it. Variables of Grafana (`$topic`) may occur inside
strings and durations.
"""

import re
from typing import Dict, List, NamedTuple, Set, Tuple

TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<string>"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*`)
    | (?P<number>(?:\d[\w.]*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<variable>\$\{?\w+\}?)
    | (?P<mark>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],@:])""",
    re.VERBOSE,
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
KEYWORDS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}


class Selector(NamedTuple):
    """One metric as an expression selects it; matchers are (label, operator, value)."""

    metric: str
    matchers: Tuple[Tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        inside = ",".join(f'{label}{op}"{value}"' for label, op, value in self.matchers)
        return f"{self.metric}{{{inside}}}" if inside else self.metric


class Expression(NamedTuple):
    """What an expression reads, the labels it groups or joins by, and those that it makes itself."""

    text: str
    selectors: List[Selector]
    groups: List[List[str]]
    made: Set[str]


class Unreadable(ValueError):
    """The expression has a sign or an order that this module does not know."""


def read(text: str) -> Expression:
    """Reads one expression."""
    tokens = _tokens(text)
    selectors: List[Selector] = []
    groups: List[List[str]] = []
    made: Set[str] = set()
    at = 0
    while at < len(tokens):
        kind, value = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind == "mark" and value == "[":
            while at < len(tokens) and tokens[at][1] != "]":
                at += 1
            continue
        if kind == "mark" and value == "{":
            raise Unreadable(f"a selector without a metric name in {text!r}")
        if kind != "word":
            continue
        if value in GROUPING:
            if following == "(":
                labels, at = _labels(tokens, at + 1)
                groups.append(labels)
        elif value.lower() in KEYWORDS:
            continue
        elif following == "(" or following in GROUPING:
            if value in ("label_replace", "label_join"):
                made.add(_made(tokens, at))
        else:
            matchers: Tuple[Tuple[str, str, str], ...] = ()
            if following == "{":
                matchers, at = _matchers(tokens, at + 1)
            selectors.append(Selector(value, matchers))
    return Expression(text, selectors, groups, made)


def fill(text: str, values: Dict[str, str]) -> str:
    """The expression with Grafana's variables replaced, so that Prometheus takes it."""
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        text = text.replace("${" + name + "}", value).replace("$" + name, value)
    return text


def _tokens(text: str) -> List[Tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise Unreadable(f"{text[at:at + 20]!r} in {text!r}")
        if match.lastgroup:
            found.append((match.lastgroup, match.group()))
        at = match.end()
    return found


def _labels(tokens: List[Tuple[str, str]], at: int) -> Tuple[List[str], int]:
    labels = []
    while tokens[at][1] != ")":
        if tokens[at][0] == "word":
            labels.append(tokens[at][1])
        at += 1
    return labels, at + 1


def _matchers(tokens: List[Tuple[str, str]], at: int) -> Tuple[Tuple[Tuple[str, str, str], ...], int]:
    found = []
    while tokens[at][1] != "}":
        if tokens[at][1] == ",":
            at += 1
            continue
        (_, label), (_, op), (kind, value) = tokens[at : at + 3]
        if op not in ("=", "!=", "=~", "!~") or kind != "string":
            raise Unreadable(f"the matcher {label} {op} {value}")
        found.append((label, op, value[1:-1]))
        at += 3
    return tuple(found), at + 1


def _made(tokens: List[Tuple[str, str]], at: int) -> str:
    """The label that a `label_replace(v, "this", …)` writes: the first string at its own depth."""
    depth = 0
    for kind, value in tokens[at:]:
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(value if kind == "mark" else "", 0)
        if kind == "string" and depth == 1:
            return value[1:-1]
    raise Unreadable("label_replace without a label")
