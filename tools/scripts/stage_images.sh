#!/usr/bin/env bash
# Puts binaries where a Dockerfile can copy them: stripped, each with its list of crates beside it.
# Used by both Dockerfiles, inside the build and on the host. A file whose content would stay the
# same is left alone.
#
#   stage_images.sh FROM TO BINARY...     for example: stage_images.sh target/release .build/images muster
set -euo pipefail

[ $# -ge 3 ] || { printf 'usage: %s FROM TO BINARY...\n' "$0" >&2; exit 2; }
from="$1" to="$2"
shift 2
root="$(cd "$(dirname "$0")/../.." && pwd)"
mkdir -p "$to"

for binary in "$@"; do
    source="$from/$binary" staged="$to/$binary"
    [ -x "$source" ] || { printf 'error: %s is missing; build it first\n' "$source" >&2; exit 1; }
    if [ ! "$staged" -nt "$source" ]; then
        strip -o "$staged.new" "$source"
        mv "$staged.new" "$staged"
    fi
    if [ ! "$staged.cdx.json" -nt "$root/Cargo.lock" ] || [ ! "$staged.cdx.json" -nt "$source" ]; then
        python3 "$root/tools/scripts/sbom.py" --binary "$binary" > "$staged.cdx.json.new"
        mv "$staged.cdx.json.new" "$staged.cdx.json"
    fi
done
