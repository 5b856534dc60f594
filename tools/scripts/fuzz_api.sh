#!/usr/bin/env bash
# Tries the API of a stack of its own with requests made from its OpenAPI document (schemathesis, every
# check but what tools/schemathesis.toml says): no answer may be a 5xx, and each must have a status, a content type and a shape that the document
# declares. Every operation must have been tried. usage: fuzz_api.sh [SECONDS] with the programs in $MUSTER_BIN. SEED repeats a run; without it each run
# tries other requests.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
seconds="${1:-150}"
programs="${MUSTER_BIN:?says where the programs are}"
tools="$("$root/tools/scripts/python_tools.sh")"
folder="$(mktemp -d)"
stack="$folder/data/stack.json"

end() {
    local code=$?
    if [ -n "${dev:-}" ] && kill -0 "$dev" 2>/dev/null; then
        kill -INT "$dev"
        wait "$dev" 2>/dev/null || true
    fi
    [ $code -eq 0 ] || { say "the stack's log ended with:"; tail -n 20 "$folder/dev.log" >&2 || true; }
    rm -rf "$folder"
    exit $code
}
trap end EXIT

# Without a limit: this is about answers, not about rates.
API_RATE_LIMIT_RPS=0 "$programs/muster" dev --dir "$folder/data" --port 0 > "$folder/dev.log" 2>&1 &
dev=$!
for _ in $(seq 600); do
    [ ! -s "$stack" ] || break
    kill -0 "$dev" 2>/dev/null || { say "error: the stack did not start"; exit 1; }
    sleep 0.1
done
field() { "$tools/python" -c 'import json, sys; s = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$stack" "$1"; }
url="$(field 'next(p["http"] for p in s["processes"] if "http" in p)')"
key="$(field 's["api_key"]')"

say "trying $url/openapi.json for $seconds s"
cd "$folder"
"$tools/st" --config-file "$root/tools/schemathesis.toml" run "$url/openapi.json" \
    --header "Authorization: Bearer $key" --phases examples,coverage,fuzzing,stateful \
    ${SEED:+--seed "$SEED"} --max-response-time 35 --max-time "$seconds" --max-examples "${EXAMPLES:-10}" --workers 1 --wait-for-schema 30 --request-timeout 40 \
    --continue-on-failure --no-color --report-json-path "$folder/report.json"
"$tools/python" - "$folder/report.json" <<'PYTHON'
import json, sys
operations = json.load(open(sys.argv[1]))["operations"]
if operations["tested"] < operations["selected"]:
    sys.exit(f"error: not every operation was tried within the time: {operations}")
PYTHON
