#!/usr/bin/env bash
# Checks alerts, recording rules, scrape configurations and dashboards; `--live URL` also asks a
# running Prometheus every query. Needs promtool (Debian's package prometheus) and the tool
# environment of tools/scripts/python_tools.sh, which it makes when it is missing.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if ! command -v promtool >/dev/null 2>&1; then
    echo "error: promtool is not installed" >&2
    echo "hint:  tools/scripts/setup.sh test   (on Debian and Ubuntu: apt-get install prometheus)" >&2
    exit 1
fi
bin="$("$root/tools/scripts/python_tools.sh")"
cd "$root"
PYTHONPATH=tools exec "$bin/python" -m dashboards.checks "$@"
