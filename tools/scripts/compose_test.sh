#!/usr/bin/env bash
# What `make compose-test` runs, step by step; with numbers only those steps.
#
#   compose_test.sh [STEP...]
#     1  gate 19 and outages under load (5, 16, then 24 and 28 on the clustered stores), each with its faults
#     2  gates 1 and 19 with Compose 1.29 and with Compose 2, and with Compose 2 gate 24 on the clustered stores
#     3  `muster stack from-compose`, then four drills and a bench on that compose stack
#     4  our images from source, inside a container, and the tests of these images
#     5  the README's "Run it with Docker" in a fresh clone: compose-up, a job, gate 19, compose-down
#
# It needs a container engine and root, and takes more than an hour; step 4 compiles everything once more, step 5 what is
# ours. A step that this machine cannot do says SKIPPED and fails the run, since it proves nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '\n== %s\n' "$*" >&2; }
skipped() { printf '######## SKIPPED: %s ########\n' "$*"; result=1; }
gate() { tools/scripts/production_gate.sh --up --strict "$@" || result=1; }
result=0

faults() { gate --gate 19 5 16 24 28 --self-test; }

both_composes() {
    local first second version
    first="$(command -v docker-compose || true)"
    if [ -n "$first" ] && version="$("$first" version --short)" && [ "${version%%.*}" = 1 ]; then
        say "gates 1 and 19 with Compose $version"
        COMPOSE="$first" gate --gate 1 19
    else
        skipped "Compose 1.29 is not on this machine (Debian 12: apt-get install docker-compose)"
    fi
    if second="$(tools/scripts/compose2.sh)"; then
        say "gates 1, 19 and 24 with $second"
        COMPOSE="$second" gate --gate 1 19 24
    else
        skipped "Compose 2 is not on this machine and could not be fetched"
    fi
}

command_line() { PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 python3 -m gate.attached || result=1; }

from_source() {
    local tag=from-source
    tools/scripts/standins.sh --build-from-source
    MUSTER_VERSION="$tag" tools/scripts/images.sh --source || { result=1; return 0; }
    MUSTER_VERSION="$tag" MUSTER_IMAGES=required make --no-print-directory images-check || result=1
    docker image rm muster/{cli,gateway,scheduler,workflow}:"$tag" >/dev/null
}

as_a_new_user() {
    tools/scripts/readme_docker_test.sh || result=1
    # The clone has left its programs where cargo builds. In this checkout only the files are linked again.
    make --no-print-directory build || result=1
}

asked=("$@")
[ $# -gt 0 ] || asked=(1 2 3 4 5)
for number in "${asked[@]}"; do
    say "step $number"
    case "$number" in
        1) faults ;;
        2) both_composes ;;
        3) command_line ;;
        4) from_source ;;
        5) as_a_new_user ;;
        *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
exit "$result"
