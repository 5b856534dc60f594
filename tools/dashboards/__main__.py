"""Command line: writes, checks or tries the dashboards. Run from the project's root with PYTHONPATH=tools.

python3 -m dashboards            writes deploy/grafana/dashboards/*.json
python3 -m dashboards --check    fails if a file differs from what would be written
"""

import argparse
import json
import sys
from typing import Dict, List

from . import expressions
from .boards import ALL
from .model import render


def texts() -> Dict[str, str]:
    """File name → content of every dashboard."""
    return {f"{board.uid}.json": json.dumps(render(board), indent=1, ensure_ascii=False) + "\n" for board in ALL}


def stale() -> List[str]:
    """Files that differ from what the code says, are missing, or are left over."""
    wanted = texts()
    found = {path.name: path.read_text() for path in expressions.BOARDS.glob("*.json")}
    return sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(prog="dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    if parser.parse_args().check:
        for name in stale():
            print(f"error: deploy/grafana/dashboards/{name} is not what tools/dashboards says", file=sys.stderr)
        if stale():
            print("hint:  make dashboards", file=sys.stderr)
        return 1 if stale() else 0
    expressions.BOARDS.mkdir(parents=True, exist_ok=True)
    for name in stale():
        (expressions.BOARDS / name).unlink(missing_ok=True)
    for name, text in texts().items():
        (expressions.BOARDS / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
