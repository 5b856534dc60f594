#!/usr/bin/env bash
# Makes a Kustomize overlay of your own, with fresh secrets: new_overlay.sh [OPTIONS] FOLDER
#
#   --own-stores     on Redis and NATS that you run yourself, instead of those of this repository
#   --monitoring     with ServiceMonitors (the Prometheus operator must be installed)
#   --traces         with spans sent to the collector otel-collector in the namespace tracing
#   --demo-worker    with a worker for the topic `demo`
#   --registry NAME  where Muster's images are: registry.example.com/team
#   --tag TAG        their version, instead of the one in base
#
# The folder is made with mode 0700 and never overwritten: its passwords belong to the data in the
# cluster. Keep it outside of this repository, or in a repository that encrypts secrets.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit "${3:-1}"; }
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
overlay=ha folder='' registry='' tag='' monitoring='' traces='' worker=''
while [ $# -gt 0 ]; do
    case "$1" in
        --own-stores) overlay=own-stores ;;
        --monitoring) monitoring=yes ;;
        --traces) traces=yes ;;
        --demo-worker) worker=yes ;;
        --registry) registry="${2:?--registry needs a name}"; shift ;;
        --tag) tag="${2:?--tag needs a version}"; shift ;;
        -h | --help) usage ;;
        -*) die "unknown option $1" "see $0 --help" 2 ;;
        *) [ -z "$folder" ] || die "one folder only: $folder, $1" "" 2; folder="$1" ;;
    esac
    shift
done
[ -n "$folder" ] || usage
[ "$worker" != yes ] || [ "$overlay" = ha ] || die "--demo-worker needs the stores of this repository" "leave --own-stores out" 2
[ ! -e "$folder" ] || die "$folder exists and is left as it is" "its passwords belong to the data in the cluster; choose another folder"

umask 077
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
# Kustomize wants a relative path to folders.
up="$(realpath --relative-to="$folder" "$here")"

# 40 hex digits behind a letter: URLs need no escapes, and NATS reads no number.
secret() { printf '%s%s' "$1" "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')"; }

printf 'MUSTER_API_KEY=%s\n' "$(secret k)" > "$folder/api.env"
if [ "$overlay" = ha ]; then
    redis="$(secret r)" user=muster nats="$(secret n)"
    printf 'REDIS_PASSWORD=%s\nNATS_USER=%s\nNATS_PASSWORD=%s\n' "$redis" "$user" "$nats" > "$folder/store-passwords.env"
    # A list of whole URLs, without a blank.
    urls() { local each list=''; for each in $2; do list="$list,$1$each"; done; printf '%s' "${list#,}"; }
    printf 'REDIS_URL=%s\nNATS_URL=%s\n' \
        "$(urls "redis://:$redis@redis-" '0.redis:6379 1.redis:6379 2.redis:6379 3.redis:6379 4.redis:6379 5.redis:6379')" \
        "$(urls "nats://$user:$nats@nats-" '0.nats:4222 1.nats:4222 2.nats:4222')" > "$folder/stores.env"
else
    cat > "$folder/stores.env" <<'END'
REDIS_URL=<replace me: rediss+cluster://:password@redis.example:6379>
NATS_URL=<replace me: tls://user:password@nats.example:4222>
END
fi

{
    cat <<END
# Made by deploy/k8s/new_overlay.sh. Yours: add patches, settings and images as you like.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: muster
resources:
  - $up/overlays/$overlay
END
    if [ -n "$monitoring$traces$worker" ]; then
        echo 'components:'
        [ -z "$monitoring" ] || echo "  - $up/components/monitoring"
        [ -z "$monitoring" ] || [ "$overlay" != ha ] || echo "  - $up/components/monitoring-redis"
        [ -z "$traces" ] || echo "  - $up/components/traces"
        [ -z "$worker" ] || echo "  - $up/components/demo-worker"
    fi
    cat <<'END'
secretGenerator:
  - name: muster-api
    behavior: replace
    envs: [api.env]
  - name: muster-stores
    behavior: replace
    envs: [stores.env]
END
    [ "$overlay" != ha ] || cat <<'END'
  - name: muster-store-passwords
    behavior: replace
    envs: [store-passwords.env]
    options:
      disableNameSuffixHash: true
END
    if [ -n "$registry$tag" ]; then
        echo 'images:'
        programs=(gateway scheduler workflow)
        [ -z "$worker" ] || programs+=(cli)
        for program in "${programs[@]}"; do
            echo "  - name: muster/$program"
            [ -z "$registry" ] || echo "    newName: $registry/muster/$program"
            [ -z "$tag" ] || echo "    newTag: \"$tag\""
        done
    fi
    cat <<'END'
# Settings of all services, see docs/reference/settings.md:
# configMapGenerator:
#   - name: muster-config
#     behavior: merge
#     literals:
#       - MUSTER_LOG=debug
END
} > "$folder/kustomization.yaml"

say "made $folder"
[ "$overlay" = ha ] || say "next: write the URLs of your stores into $folder/stores.env"
say "next: kubectl apply -k $folder"
