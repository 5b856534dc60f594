#!/usr/bin/env bash
# Installs what is missing for `make run` (stack), `make test` (test), `make gate` and `make compose-test`
# (gate), or stand-in images (containers, rust-image), from Debian's own packages.
# Never starts, stops or changes a server: what is there already is left alone, and what gets
# installed is kept from starting by itself.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

# Debian keeps servers where a user's PATH does not look.
PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin"

what="${1:-stack}"
# program:package
case "$what" in
    stack) wanted=(cc:gcc cc:libc6-dev redis-server:redis-server redis-cli:redis-tools nats-server:nats-server) ;;
    test) wanted=(cc:gcc cc:libc6-dev redis-server:redis-server redis-cli:redis-tools nats-server:nats-server promtool:prometheus openssl:openssl faketime:faketime python3:python3) ;;
    containers) wanted=(redis-server:redis-server redis-cli:redis-tools nats-server:nats-server prometheus:prometheus prometheus-redis-exporter:prometheus-redis-exporter busybox:busybox-static) ;;
    # Redis loads a backup to verify it (gate 22), openssl makes a certificate that the exporter probes (gate 21), git and
    # curl do what a new user does (compose_test.sh).
    gate) wanted=(cc:gcc cc:libc6-dev redis-server:redis-server redis-cli:redis-tools openssl:openssl prometheus-blackbox-exporter:prometheus-blackbox-exporter python3:python3 git:git curl:curl) ;;
    rust-image) wanted=(mmdebstrap:mmdebstrap) ;;
    *) say "usage: $0 [stack|test|gate|containers|rust-image]"; exit 2 ;;
esac

command -v cargo >/dev/null 2>&1 || die "cargo is not installed" "install Rust first; rustup is the usual way"

missing=()
for pair in "${wanted[@]}"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    die "missing on this machine: ${missing[*]} (named as in Debian)" \
        "this script installs on Debian and Ubuntu only; elsewhere install them yourself (redis 7.0 and nats-server 2.9, or later)"
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || die "installing ${missing[*]} needs root" "run as root, or install sudo"
    as_root=(sudo)
fi
run() { "${as_root[@]}" "$@"; }

# Packages of servers start them at once. A policy that says no is Debian's own way to prevent it;
# if the machine has a policy already, that one decides.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'run rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | run tee "$policy" >/dev/null
    run chmod 755 "$policy"
fi

say "installing ${missing[*]}"
run apt-get -qq update || say "warning: apt-get update failed; trying with the package lists that are there"
run env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${missing[@]}" >&2 \
    || die "apt-get could not install ${missing[*]}" "see its output above"

for pair in "${wanted[@]}"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || die "${pair%%:*} is still missing after installing ${pair#*:}"
done
