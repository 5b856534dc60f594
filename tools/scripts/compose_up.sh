#!/usr/bin/env bash
# Brings the compose stack up and waits until every container is healthy; or takes it down.
#
#   compose_up.sh [--ha] [--cluster] [--no-images]      up; --cluster includes --ha
#   compose_up.sh --down [--ha] [--cluster] [--volumes] down; --volumes also removes the data
#
# Before `up`: .env is made if it is missing, images of others are pulled (or stood in for, which is
# said), and ours are built: from source where the Rust image can be had, else from binaries of this
# machine. MUSTER_IMAGES=source|host|keep chooses by hand. Works with Compose 1.29 and 2; COMPOSE
# chooses: COMPOSE="docker compose". A second run changes nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

ha='' cluster='' down='' volumes='' images="${MUSTER_IMAGES:-}"
for flag in "$@"; do
    case "$flag" in
        --ha) ha=yes ;;
        --cluster) ha=yes cluster=yes ;;
        --down) down=yes ;;
        --volumes) volumes=yes ;;
        --no-images) images=keep ;;
        *) say "usage: $0 [--ha] [--cluster] [--no-images] | --down [--ha] [--cluster] [--volumes]"; exit 2 ;;
    esac
done

docker version --format '{{.Server.Version}}' >/dev/null 2>&1 \
    || die "the Docker engine does not answer" "is it running, and may this user reach it?"
if [ -z "${COMPOSE:-}" ]; then
    if docker compose version >/dev/null 2>&1; then COMPOSE="docker compose"
    elif command -v docker-compose >/dev/null 2>&1; then COMPOSE=docker-compose
    else die "Docker Compose is not installed" "install the plug-in (docker compose) or docker-compose 1.29"; fi
fi
files=(-f docker-compose.yml)
[ -z "$ha" ] || files+=(-f docker-compose.ha.yaml)
[ -z "$cluster" ] || files+=(-f docker-compose.cluster.yaml)
# COMPOSE may be two words.
# shellcheck disable=SC2086
compose() { $COMPOSE "${files[@]}" "$@"; }

# A setting of the stack: environment, else .env, else the default.
setting() {
    local value="${!1:-}"
    [ -n "$value" ] || value="$(sed -n "s/^$1=//p" .env 2>/dev/null | tail -1)"
    printf '%s' "${value:-${2:-}}"
}

if [ -n "$down" ]; then
    [ -e .env ] || [ -n "${REDIS_PASSWORD:-}" ] || die "there is no .env, hence no stack of this folder"
    compose down --remove-orphans ${volumes:+--volumes}
    exit 0
fi

[ -e .env ] || [ -n "${MUSTER_API_KEY:-}" ] || tools/scripts/secrets.sh >&2

standins=''
if [ "$images" != keep ]; then
    standins="$(tools/scripts/standins.sh 2>&1 | tee /dev/stderr | grep 'STAND-IN' || true)"
    runtime_is_real=yes
    case "$standins" in *distroless*) runtime_is_real='' ;; esac
    [ -n "$images" ] || images="$([ -n "$runtime_is_real" ] && echo source || echo host)"
    if [ "$images" = host ]; then
        say "building our images from binaries of this machine"
        command -v cargo >/dev/null 2>&1 || die "cargo is not installed" "install Rust, or use MUSTER_IMAGES=source"
        export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$HOME/.cache/muster/target}"
        make --no-print-directory build >&2
        MUSTER_VERSION="$(setting MUSTER_VERSION dev)" tools/scripts/images.sh
    else
        say "building our images from source: the first time takes minutes"
        compose build >&2
    fi
fi

compose up -d || die "compose could not start the stack" "logs: $COMPOSE ${files[*]} logs --tail 50"

# Every container must be running, and healthy where it has a health check.
deadline=$((SECONDS + ${MUSTER_UP_TIMEOUT:-120}))
while :; do
    # shellcheck disable=SC2046
    waiting="$(docker inspect --format '{{.Name}} {{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}' \
        $(compose ps -q) | grep -v ' running healthy$' || true)"
    [ -n "$waiting" ] || break
    [ "$SECONDS" -lt "$deadline" ] || { say "$waiting"; die "the stack is not healthy after ${MUSTER_UP_TIMEOUT:-120} s" "logs: $COMPOSE ${files[*]} logs --tail 50"; }
    sleep 0.5
done

bind="$(setting MUSTER_BIND 127.0.0.1)" port="$(setting GATEWAY_1_PORT 8081)"
url="http://$bind:$port"
[ -z "$ha" ] || url="$url and http://$bind:$(setting GATEWAY_2_PORT 8083)"
cat <<END

The stack is up (project $(setting COMPOSE_PROJECT_NAME "$(basename "$PWD")"), $(compose ps -q | wc -l) containers).
  API:         $url
  Prometheus:  http://127.0.0.1:$(setting PROMETHEUS_PORT 9091)
  API key:     MUSTER_API_KEY in .env

A first job:
  . ./.env && curl -sS -X POST "http://127.0.0.1:$port/api/v1/jobs?wait_ms=5000" \\
    -H "Authorization: Bearer \$MUSTER_API_KEY" -H 'Content-Type: application/json' \\
    -d '{"topic": "demo", "payload": {"hello": "world"}}'

Stop it: make compose-down${ha:+ HA=1}${cluster:+ CLUSTER=1}   (VOLUMES=1 also removes the data)
END
if [ -n "$standins" ]; then
    printf '\nSTAND-INS are in use, because these images could not be pulled:\n%s\n' "$standins"
fi
