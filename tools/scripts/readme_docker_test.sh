#!/usr/bin/env bash
# Does what the README's "Run it with Docker" says, as a new user would: a fresh clone in an empty folder, `make compose-up
# HA=1`, the README's own request, gate 19 on the stack that it finds by itself, `make compose-down HA=1 VOLUMES=1`.
#
# The clone has what is committed. The stack has its own project name, ports and image tag; all that is left of it, clone
# included, is removed at the end. Needs a container engine and root, as gate 19 does. compose_test.sh runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf -- '-- %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

checkout="$PWD" work="$(mktemp -d)"
export COMPOSE_PROJECT_NAME="mreadme$$" MUSTER_VERSION="readme$$"
mine="label=com.docker.compose.project=$COMPOSE_PROJECT_NAME"
# Containers, volumes and networks of the project.
left() { docker ps -aq --filter "$mine"; docker volume ls -q --filter "$mine"; docker network ls -q --filter "$mine"; }
clean_up() {
    local ids
    ids="$(docker ps -aq --filter "$mine")"
    # Ids are words without spaces.
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker rm -f -v $ids >/dev/null
    docker volume ls -q --filter "$mine" | xargs -r docker volume rm >/dev/null
    docker network ls -q --filter "$mine" | xargs -r docker network rm >/dev/null
    docker image ls -q --filter "reference=muster/*:$MUSTER_VERSION" | sort -u | xargs -r docker image rm -f >/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

mapfile -t ports < <(PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 python3 -c '
from gate.stacks.compose import PORTS
from gate.stacks.ports import free_ports
print(*(f"{name}={port}" for name, port in zip(PORTS, free_ports(len(PORTS)))), sep="\n")')
[ ${#ports[@]} -gt 0 ] || die "no free ports"
export "${ports[@]}"

[ -z "$(git status --porcelain)" ] || say "changes that are not committed are not in the clone"
# Under sudo the checkout may belong to another user.
git -c "safe.directory=$checkout" -c "safe.directory=$checkout/.git" clone --quiet "file://$checkout" "$work/muster"
cd "$work/muster"

say "make compose-up HA=1"
make --no-print-directory compose-up HA=1
[ "$(stat -c %a .env)" = 600 ] || die ".env was not made with mode 0600"
running="$(docker ps -q --no-trunc --filter "$mine" | sort)"
[ "$(wc -l <<< "$running")" -ge 8 ] || die "$(wc -l <<< "$running") containers run"

say "make compose-up HA=1 once more"
make --no-print-directory compose-up HA=1 >/dev/null
[ "$running" = "$(docker ps -q --no-trunc --filter "$mine" | sort)" ] || die "a second compose-up made containers again"

# The block of the README that asks the second gateway, with our port.
request="$(sed -n '/^## Run it with Docker$/,/^## Run it on/p' README.md | awk '
    /^```sh$/ { inside = 1; block = ""; next }
    /^```$/ { if (inside && block ~ /:8083\//) printf "%s", block; inside = 0; next }
    inside { block = block $0 "\n" }')"
[ -n "$request" ] || die "the README has no request to port 8083"
say "the README's request, to port $GATEWAY_2_PORT"
answer="$(bash -euo pipefail -c "${request//:8083\//:$GATEWAY_2_PORT/}")"
python3 -c '
import json, sys
job = json.loads(sys.argv[1])
assert (job["state"], job["result"]) == ("succeeded", {"hello": "compose"}), job' "$answer" || die "it answered: $answer"

gate="$(sed -n '/^## Run it with Docker$/,/^## Run it on/p' README.md | sed -n 's/^sudo \(tools\/scripts\/production_gate\.sh .*\)/\1/p')"
[ -n "$gate" ] || die "the README does not run the gate"
say "$gate"
# It is a command with flags.
# shellcheck disable=SC2086
MUSTER_GATE_LOGS="${MUSTER_GATE_LOGS:-$checkout/.muster/gate}" $gate

say "make compose-down HA=1 VOLUMES=1"
make --no-print-directory compose-down HA=1 VOLUMES=1
[ -z "$(left)" ] || die "compose-down left behind: $(left | tr '\n' ' ')"
say "done: all of the README's steps worked"
