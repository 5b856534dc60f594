#!/usr/bin/env bash
# The production gate: proves on a running stack that Muster keeps its promises. Everything is in
# tools/gate; docs/operate/gate.md explains it. `--help` lists the flags, `--list` the gates.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if ! command -v python3 >/dev/null 2>&1; then
    printf 'error: python3 is not installed\nhint:  tools/scripts/setup.sh test installs it\n' >&2
    exit 1
fi
export PYTHONPATH="$here/tools${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m gate "$@"
