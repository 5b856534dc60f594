"""Quantities as Kubernetes reads them: 500m, 1Gi, 2, 0.5."""

import re
from decimal import Decimal
from typing import Any, Optional

_FORM = re.compile(r"^([+-]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|[eE][+-]?[0-9]+)?$")
_UNITS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(1000), "Ki": Decimal(1024)}
for _power, _letter in enumerate("MGTPE", start=2):
    _UNITS[_letter], _UNITS[_letter + "i"] = Decimal(1000) ** _power, Decimal(1024) ** _power


def parse(text: Any) -> Optional[Decimal]:
    """The amount, or None when Kubernetes would refuse the text."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    found = _FORM.match(str(text))
    if not found:
        return None
    number, unit = Decimal(found.group(1)), found.group(2) or ""
    if unit in _UNITS:
        return number * _UNITS[unit]
    return number * (Decimal(10) ** int(unit[1:])) if unit else number
