#!/usr/bin/env python3
"""Runs the tests of this folder and says every skip with its reason: a skip proves nothing.

  run.py            the files: compose, Dockerfiles, scripts
  run.py images     our images, as the engine has them (images.py)
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

PATTERNS = {"files": "test_*.py", "images": "images.py"}


def main(what: str) -> int:
    suite = unittest.defaultTestLoader.discover(str(Path(__file__).parent), pattern=PATTERNS[what])
    result = unittest.TextTestRunner().run(suite)
    for test, reason in result.skipped:
        print(f"######## {test.id()}: {reason} ########", flush=True)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    words = sys.argv[1:] or ["files"]
    if len(words) > 1 or words[0] not in PATTERNS:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(words[0]))
