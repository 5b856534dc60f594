#!/usr/bin/env bash
# Makes our images and checks them: size, user, and that the program inside starts.
#
#   images.sh               from binaries of this machine ($CARGO_TARGET_DIR/release), in seconds
#   images.sh --source      from source, inside a container (needs the Rust image)
#   images.sh --print       prints the images' names
#
# A new service is one line in `images`. The tag is MUSTER_VERSION, `dev` without it.
set -euo pipefail
cd "$(dirname "$0")/../.."

# image:binary
images=(
    cli:muster
    gateway:muster-gateway
    scheduler:muster-scheduler
    workflow:muster-workflow
)
limit_mb=60
tag="${MUSTER_VERSION:-dev}"
staged=.build/images

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

how=host
case "${1:-}" in
    "") ;;
    --source) how=source ;;
    --print) for pair in "${images[@]}"; do echo "muster/${pair%%:*}:$tag"; done; exit 0 ;;
    *) say "usage: $0 [--source|--print]"; exit 2 ;;
esac

build() { # image, binary
    local target=service
    [ "$1" != cli ] || target=cli
    local args=(--quiet --target "$target" --tag "muster/$1:$tag")
    [ "$target" = cli ] || args+=(--build-arg "BINARY=$2")
    for name in BUILDER RUNTIME PROFILE; do
        [ -z "${!name:-}" ] || [ "$how:$name" = host:BUILDER ] || [ "$how:$name" = host:PROFILE ] || args+=(--build-arg "$name=${!name}")
    done
    if [ "$how" = source ]; then
        docker build "${args[@]}" --file deploy/docker/Dockerfile .
    else
        docker build "${args[@]}" --file deploy/docker/Dockerfile.host "$staged"
    fi > "$log" 2>&1 || { cat "$log" >&2; return 1; }
}
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

if [ "$how" = host ]; then
    binaries=()
    for pair in "${images[@]}"; do binaries+=("${pair#*:}"); done
    tools/scripts/stage_images.sh "${CARGO_TARGET_DIR:-target}/release" "$staged" "${binaries[@]}"
fi

for pair in "${images[@]}"; do
    image="muster/${pair%%:*}:$tag"
    build "${pair%%:*}" "${pair#*:}" || die "$image could not be built" "see the output above"
    size=$(($(docker image inspect --format '{{.Size}}' "$image") / 1000000))
    [ "$size" -le "$limit_mb" ] || die "$image has $size MB, more than $limit_mb MB"
    user="$(docker image inspect --format '{{.Config.User}}' "$image")"
    [ "$user" = 65532:65532 ] || die "$image runs as '$user' instead of 65532:65532"
    version="$(docker run --rm --read-only --network none "$image" --version)" \
        || die "$image does not start" "binaries of a newer system need a newer RUNTIME; or build from source: $0 --source"
    say "$image: $version, $size MB"
done
