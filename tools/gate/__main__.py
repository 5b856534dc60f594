"""`python3 -m gate`: what tools/scripts/production_gate.sh runs."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
