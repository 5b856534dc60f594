"""The drill's copy of the rules: the same alerts, with shorter times and a few lower limits.

A real fault would have to last for minutes before an alert fires, and gate 21 tests about thirty alerts. So it
loads a copy of deploy/prometheus/rules with these changes only:

1. Every `for:` becomes 2 s.
2. Windows: ten and five minutes become 30 s, three minutes 15 s, the hour of a vanished probe one minute.
3. The limits in LIMITS are lower, where a drill cannot wait for the real limit or fill a real disk.

Nothing else changes in the expressions. It is an error if a limit is not found exactly once, so the copy stays
in step with the rules. `promtool test rules` tests the rules themselves, with their real times and limits.
"""

import re
from pathlib import Path
from typing import Dict, List, Optional

from .stacks.base import ROOT

RULES = ROOT / "deploy/prometheus/rules"
WINDOWS = {
    "[10m]": "[30s]", "offset 10m": "offset 30s", "[5m]": "[30s]",
    "[3m]": "[15s]", "offset 3m": "offset 15s", "offset 1h": "offset 1m",
}
# alert: (limit, the drill's limit)
LIMITS = {
    "MusterOldestJobTooOld": ("> 300", "> 5"),  # seconds
    "MusterWaitP99High": ("> 30", "> 2"),  # seconds
    "MusterRunTimersLate": ("> 10", "> 2"),  # seconds
    "MusterSubmitsLate": ("> 20", "> 3"),  # seconds
    "MusterNatsStorageNearFull": ("> 0.85", "> 0.004"),  # 32 MB of 8 GB
    "MusterStoreFaults": ("> 50", "> 5"),  # calls
    "MusterLoopOverruns": ("> 2", "> 0"),  # ticks
}


def names() -> List[str]:
    """Every alert of deploy/prometheus/rules, in order."""
    return [name for path in sorted(RULES.glob("*.yml")) for name in re.findall(r"- alert: (\w+)", path.read_text())]


def write(folder: Path, without: Optional[str] = None, deaf: Optional[str] = None) -> None:
    """Writes the copy into a folder. For red controls: the alert `without` is left out; the alert `deaf` never fires,
    because its fault would have to last for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(RULES.glob("*.yml")):
        (folder / path.name).write_text(shortened(path.read_text(), without, deaf))
        (folder / path.name).chmod(0o644)
    folder.chmod(0o755)


def shortened(text: str, without: Optional[str] = None, deaf: Optional[str] = None) -> str:
    """One rule file, transformed."""
    text = re.sub(r"^(\s+for:) \S+$", r"\1 2s", text, flags=re.MULTILINE)
    for real, drill in WINDOWS.items():
        text = text.replace(real, drill)
    for name, block in _blocks(text).items():
        if name == without:
            text = text.replace(block, "")
        elif name == deaf:
            if "for: 2s" not in block:
                raise ValueError(f"{name} has no `for`, so it cannot be made deaf")
            text = text.replace(block, block.replace("for: 2s", "for: 1d"))
        elif name in LIMITS:
            real, drill = LIMITS[name]
            found = len(re.findall(re.escape(real) + r"(?![\d.])", block))
            if found != 1:
                raise ValueError(f"the limit {real!r} is {found} times in {name}: tools/gate/drill_rules.py is out of date")
            text = text.replace(block, re.sub(re.escape(real) + r"(?![\d.])", drill, block))
    return text


def _blocks(text: str) -> Dict[str, str]:
    """The lines of each alert, from `- alert:` to the next rule, by alert."""
    parts = re.split(r"(?=^      - (?:alert|record):)", text, flags=re.MULTILINE)
    return {match.group(1): part for part in parts for match in [re.match(r"\s+- alert: (\w+)", part)] if match}
