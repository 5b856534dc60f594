"""All gates: every `gates/gNN_name.py`, by its number. A new gate is one new file."""

import importlib
import re
from pathlib import Path
from typing import Dict, Iterable, List

from .model import Gate


class UnknownGate(Exception):
    """A gate was requested that does not exist."""


def load() -> Dict[int, Gate]:
    """All gates, in order of their numbers."""
    found: Dict[int, Gate] = {}
    for path in sorted(Path(__file__).with_name("gates").glob("g[0-9]*_*.py")):
        gate = importlib.import_module(f"gate.gates.{path.stem}").GATE
        number = int(re.match(r"g(\d+)_", path.name).group(1))  # type: ignore[union-attr]
        if gate.number != number or number in found:
            raise ImportError(f"{path.name} says that it is gate {gate.number}")
        found[number] = gate
    return dict(sorted(found.items()))


def choose(gates: Dict[int, Gate], numbers: Iterable[str]) -> List[Gate]:
    """The requested gates; all if none is requested."""
    asked = [word for text in numbers for word in text.split(",") if word]
    unknown = [word for word in asked if not word.isdigit() or int(word) not in gates]
    if unknown:
        raise UnknownGate(f"unknown gate {', '.join(unknown)}; there are {', '.join(map(str, gates))}")
    return [gates[number] for number in sorted({int(word) for word in asked})] if asked else list(gates.values())
