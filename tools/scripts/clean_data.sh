#!/usr/bin/env bash
# Removes the folder of a local stack, unless that stack runs.
# usage: clean_data.sh DIR
set -euo pipefail

dir="$1"
pid="$(cut -d' ' -f1 "$dir/dev.pid" 2>/dev/null || true)"
if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
    echo "error: the stack in $dir runs (pid $pid)" >&2
    echo "hint:  stop it with Ctrl-C first" >&2
    exit 1
fi
rm -rf -- "$dir"
echo "removed $dir"
