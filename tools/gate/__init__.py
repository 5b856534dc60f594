"""The production gate: checks that a running Muster stack keeps its promises.

A gate is one file in `gates/`. It exports `GATE`, made from the names below, and the catalogue finds
it by its file name `gNN_name.py`. docs/operate/gate.md says what each gate proves and how to run them.
"""

from .context import Context
from .model import Control, Gate, Red, Skip
from .stacks.base import Replica, Response, Sample

__all__ = ["Context", "Control", "Gate", "Red", "Replica", "Response", "Sample", "Skip"]
