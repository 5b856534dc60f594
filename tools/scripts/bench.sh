#!/usr/bin/env bash
# Starts a stack of its own in a temporary folder, runs the bench on it, and takes it down again.
# usage: bench.sh MUSTER [arguments of `muster bench submit`]
set -euo pipefail

muster="$1"
shift
dir="$(mktemp -d)"
"$muster" dev --replicas "${REPLICAS:-2}" --port 0 --no-worker --dir "$dir" >"$dir/dev.out" 2>&1 &
dev=$!
finish() {
    kill -TERM "$dev" 2>/dev/null || true
    wait "$dev" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

# The state file appears when everything is ready.
until [ -e "$dir/stack.json" ]; do
    if ! kill -0 "$dev" 2>/dev/null; then
        cat "$dir/dev.out" >&2
        exit 1
    fi
    sleep 0.1
done
"$muster" --state-file "$dir/stack.json" bench submit "$@"
