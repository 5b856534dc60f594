#!/bin/sh
# Makes one Redis cluster out of nodes, and keeps it one: joins nodes, hands out slots, makes
# replicas, and lets the nodes meet again when their addresses have changed. plan.awk decides; this
# script asks the nodes and carries it out. Every step may be repeated or interrupted.
#
#   cluster.sh watch NODE...    for ever, every HEAL_INTERVAL seconds (2)
#   cluster.sh once  NODE...    one step; for a test
#   cluster.sh check NODE...    exit 0 when the cluster serves all slots; for a health check
#
# Environment: REDISCLI_AUTH (password), NODE_PORT (6379), PRIMARIES (3), HEAL_INTERVAL (2).
# Needs redis-cli, awk and timeout: the alpine image has them.
set -eu

here="$(dirname "$0")"
port="${NODE_PORT:-6379}"
verb="${1:-}"
[ $# -ge 2 ] || { echo "usage: $0 watch|once|check NODE..." >&2; exit 2; }
shift

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*"; }
ask() { node="$1"; shift; timeout 2 redis-cli -h "$node" -p "$port" "$@" 2>/dev/null; }

# What all nodes say, in the form that plan.awk reads. A node knows its own address by the
# connection that it is asked on.
views() {
    for node in "$@"; do
        echo "node $node"
        printf 'CLIENT INFO\nCLUSTER NODES\nINFO replication\n' | ask "$node" | awk -v node="$node" '
            { sub(/\r$/, "") }
            match($0, /laddr=[^ ]*/) { print "addr", node, substr($0, RSTART + 6, RLENGTH - 6); next }
            /^master_host:/ { host = substr($0, 13) }
            /^master_port:/ { print "follows", node, host ":" substr($0, 13) }
            /^[0-9a-f]/ && length($1) == 40 { print "view", node, $0 }' || true
    done
}

step() {
    views "$@" | awk -v primaries="${PRIMARIES:-3}" -f "$here/plan.awk" | while read -r what node rest; do
        # The arguments are words without spaces.
        # shellcheck disable=SC2086
        case "$what" in
            meet) answer="$(ask "$node" CLUSTER MEET $rest || true)" ;;
            slots) answer="$(ask "$node" CLUSTER ADDSLOTSRANGE $rest || true)" ;;
            replicate) answer="$(ask "$node" CLUSTER REPLICATE $rest || true)" ;;
            forget) answer="$(ask "$node" CLUSTER FORGET $rest || true)" ;;
            *) answer='' ;;
        esac
        say "$what $node $rest${answer:+: $answer}"
    done
}

# Most nodes answer, and each that answers sees every slot served.
check() {
    good=0
    for node in "$@"; do
        info="$(ask "$node" CLUSTER INFO || true)"
        case "$info" in *cluster_state:*) ;; *) continue ;; esac
        case "$info" in *cluster_state:ok*cluster_slots_ok:16384*) good=$((good + 1)) ;; *) return 1 ;; esac
    done
    [ $((good * 2)) -gt $# ]
}

case "$verb" in
    watch)
        trap 'exit 0' TERM INT
        while :; do
            step "$@"
            # In the background, so that a signal ends the wait.
            sleep "${HEAL_INTERVAL:-2}" & wait $!
        done ;;
    once) step "$@" ;;
    check) check "$@" ;;
    *) echo "usage: $0 watch|once|check NODE..." >&2; exit 2 ;;
esac
