#!/usr/bin/env bash
# Writes .env (mode 0600) for the compose stack: .env.example with fresh secrets filled in.
# An existing file is never overwritten: clients know its key, and a running stack its passwords.
set -euo pipefail
cd "$(dirname "$0")/../.."

file="${1:-.env}"
if [ -e "$file" ]; then
    printf 'error: %s exists and is left as it is\n' "$file" >&2
    printf 'hint:  clients know its key; if you want new secrets all the same, remove the file yourself and start the stack again\n' >&2
    exit 1
fi

# 40 hex digits behind a letter. NATS would read a value of digits alone as a number.
secret() { printf '%s%s' "$1" "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')"; }

umask 077
draft="$(mktemp "$file.XXXXXX")"
trap 'rm -f "$draft"' EXIT
sed -e "s/^MUSTER_API_KEY=.*/MUSTER_API_KEY=$(secret k)/" \
    -e "s/^REDIS_PASSWORD=.*/REDIS_PASSWORD=$(secret r)/" \
    -e "s/^NATS_PASSWORD=.*/NATS_PASSWORD=$(secret n)/" \
    -e "s/^#GRAFANA_PASSWORD=.*/GRAFANA_PASSWORD=$(secret g)/" .env.example > "$draft"
# A link fails if the file has appeared meanwhile; a rename would overwrite it.
ln "$draft" "$file"
printf 'wrote %s (mode 0600): API key, passwords of Redis, NATS and Grafana\n' "$file"
