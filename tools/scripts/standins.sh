#!/usr/bin/env bash
# Images of others that the compose stack needs, on a machine that cannot pull them.
#
# For each image that is absent: pull it; where that fails, make a stand-in under the same name from
# this machine's own Debian packages. A stand-in holds the server's binary, the libraries it needs
# and busybox; it starts as the original does. It is not the original: it carries the label
# `muster.stand-in` with the versions that it really holds, and this script prints them every time.
# An image that is there, real or stand-in, is never replaced.
#
#   standins.sh                         what docker-compose.yml and its overlays need
#   standins.sh --build-from-source     also the Rust image, for deploy/docker/Dockerfile
#   standins.sh --list                  say which images are real, stand-ins or absent
#
# Grafana and the OpenTelemetry collector are in no Debian release: their profiles need a registry.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PATH:/usr/sbin:/sbin"

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

# Default of a variable such as REDIS_IMAGE in docker-compose.yml, unless the environment or .env has another.
image_of() {
    local name="${!1:-}"
    [ -n "$name" ] || name="$(sed -n "s/^$1=//p" .env 2>/dev/null | tail -1)"
    [ -n "$name" ] || name="$(sed -n "s/.*\${$1:-\([^}]*\)}.*/\1/p" docker-compose.yml | head -1)"
    printf '%s' "$name"
}
# Default of a build argument of the Dockerfile.
base_of() { local name="${!1:-}"; printf '%s' "${name:-$(sed -n "s/^ARG $1=//p" deploy/docker/Dockerfile)}"; }

redis="$(image_of REDIS_IMAGE)" nats="$(image_of NATS_IMAGE)" prometheus="$(image_of PROMETHEUS_IMAGE)"
exporter="$(image_of REDIS_EXPORTER_IMAGE)" runtime="$(base_of RUNTIME)" builder="$(base_of BUILDER)"
wanted=("$redis" "$nats" "$prometheus" "$exporter" "$runtime")

mode="${1:-make}"
case "$mode" in
    make | --list) ;;
    --build-from-source) wanted+=("$builder") ;;
    *) say "usage: $0 [--build-from-source|--list]"; exit 2 ;;
esac
docker version --format '{{.Server.Version}}' >/dev/null 2>&1 || die "the Docker engine does not answer" "is it running, and may this user reach it?"

# "real", "absent", or what the stand-in holds.
state_of() {
    local label
    label="$(docker image inspect --format '{{index .Config.Labels "muster.stand-in"}}' "$1" 2>/dev/null)" || { echo absent; return; }
    echo "${label:-real}"
}
report() {
    local image state
    for image in "${wanted[@]}"; do
        state="$(state_of "$image")"
        case "$state" in real | absent) say "$image: $state" ;; *) say "$image: STAND-IN, holds $state" ;; esac
    done
}

# --- a root folder for an image ---
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

new_root() {
    root="$work/root" tar="$work/root.tar"
    rm -rf "$root" "$tar"
    mkdir -p "$root"/{etc/ssl/certs,tmp,bin,lib64,usr/bin,usr/local/bin}
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n' > "$root/etc/passwd"
    printf 'root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n' > "$root/etc/group"
    printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}
# Copies a program of this machine and the libraries that it needs.
add() { # program, where to
    local library
    install -D -m 755 "$(command -v "$1")" "$root$2"
    { ldd "$(command -v "$1")" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        [ -e "$root$library" ] || install -D -m 755 "$(readlink -f "$library")" "$root$library"
    done
}
add_shell() {
    local applet
    install -m 755 "$(command -v busybox)" "$root/bin/busybox"
    for applet in $(busybox --list | grep -vx busybox); do ln -sf /bin/busybox "$root/bin/$applet"; done
}
# The entrypoint of the original: the server's name may be left out before a flag.
add_entrypoint() { # server
    cat > "$root/usr/local/bin/docker-entrypoint.sh" <<END
#!/bin/sh
set -e
case "\${1:--}" in -*|*.conf) set -- $1 "\$@" ;; esac
exec "\$@"
END
    chmod 755 "$root/usr/local/bin/docker-entrypoint.sh"
}
# Turns the folder into an image. Folders with an owner of their own: "path uid gid".
pack() { # image, what it holds, instructions...; folders in the variable `owned`
    local image="$1" holds="$2" line instruction path uid gid
    local changes=()
    shift 2
    tar -C "$root" --numeric-owner --owner=0 --group=0 -cf "$tar" .
    while read -r path uid gid; do
        [ -n "$path" ] || continue
        mkdir -p "$work/owned$path"
        tar -C "$work/owned" --numeric-owner --owner="$uid" --group="$gid" -rf "$tar" ".$path"
    done <<< "${owned:-}"
    line="LABEL muster.stand-in=\"$holds\""
    for instruction in "$line" "$@"; do changes+=(--change "$instruction"); done
    docker import "${changes[@]}" "$tar" "$image" >/dev/null
}
version_of() { "$@" 2>&1 | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1; }

make_redis() {
    new_root; add redis-server /usr/local/bin/redis-server; add redis-cli /usr/local/bin/redis-cli
    add_shell; add_entrypoint redis-server
    ln -s redis-server "$root/usr/local/bin/redis-check-aof"
    ln -s redis-server "$root/usr/local/bin/redis-check-rdb"
    owned="/data 999 1000" pack "$1" "redis-server $(version_of redis-server --version)" \
        'ENV PATH=/usr/local/bin:/bin' 'ENTRYPOINT ["docker-entrypoint.sh"]' 'CMD ["redis-server"]' 'WORKDIR /data' 'VOLUME /data' 'EXPOSE 6379'
}
make_nats() {
    new_root; add nats-server /usr/local/bin/nats-server; add_shell; add_entrypoint nats-server
    pack "$1" "nats-server $(version_of nats-server --version)" \
        'ENV PATH=/usr/local/bin:/bin' 'ENTRYPOINT ["docker-entrypoint.sh"]' 'CMD ["nats-server"]' 'EXPOSE 4222 6222 8222'
}
make_prometheus() {
    new_root; add prometheus /bin/prometheus; add promtool /bin/promtool; add_shell
    owned="/prometheus 65534 65534" pack "$1" "prometheus $(version_of prometheus --version)" \
        'ENV PATH=/bin' 'USER nobody' 'ENTRYPOINT ["/bin/prometheus"]' 'WORKDIR /prometheus' 'VOLUME /prometheus' 'EXPOSE 9090'
}
make_exporter() {
    new_root; add prometheus-redis-exporter /redis_exporter; add_shell
    pack "$1" "redis_exporter $(dpkg-query -W -f '${Version}' prometheus-redis-exporter)" \
        'ENV PATH=/bin' 'USER 59000:59000' 'ENTRYPOINT ["/redis_exporter"]' 'EXPOSE 9121'
}
# Distroless cc: the C library, the compiler's run-time library, certificates, a user; no shell.
make_runtime() {
    local library
    new_root
    for library in libc.so.6 libm.so.6 libgcc_s.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libstdc++.so.6; do
        # awk reads to the end: with `pipefail` a reader that leaves early would end this script.
        library="$(ldconfig -p | awk -v name="$library" '$1 == name && !found++ { print $NF }')"
        [ -z "$library" ] || install -D -m 755 "$(readlink -f "$library")" "$root$library"
    done
    install -D -m 755 "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$root/lib64/ld-linux-x86-64.so.2"
    rmdir "$root/bin" 2>/dev/null || true
    owned="/home/nonroot 65532 65532" pack "$1" "C library $(ldd --version | grep -oE '[0-9.]+$' | head -1) of this machine" \
        'ENV PATH=/usr/local/bin:/usr/bin:/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' 'USER 65532' 'WORKDIR /home/nonroot'
}
make_builder() { tools/scripts/standin_rust.sh "$1"; }

# Pulls an image. A registry that did not answer once is not asked again.
deaf=" "
pull() {
    local registry=docker.io
    case "$1" in *.*/*) registry="${1%%/*}" ;; esac
    case "$deaf" in *" $registry "*) return 1 ;; esac
    say "pulling $1"
    timeout "${MUSTER_PULL_TIMEOUT:-600}" docker pull --quiet "$1" >/dev/null 2>"$work/pull" && return 0
    say "  not possible: $(tail -1 "$work/pull" | cut -c1-160)"
    deaf="$deaf$registry "
    return 1
}

if [ "$mode" = --list ]; then report; exit 0; fi

absent=()
for image in "${wanted[@]}"; do
    [ "$(state_of "$image")" != absent ] || pull "$image" || absent+=("$image")
done
if [ ${#absent[@]} -gt 0 ]; then
    [ "$(uname -m)" = x86_64 ] || die "stand-ins are made on x86_64 only; missing: ${absent[*]}"
    tools/scripts/setup.sh containers
    for image in "${absent[@]}"; do
        case "$image" in
            "$redis") make_redis "$image" ;;
            "$nats") make_nats "$image" ;;
            "$prometheus") make_prometheus "$image" ;;
            "$exporter") make_exporter "$image" ;;
            "$runtime") make_runtime "$image" ;;
            "$builder") make_builder "$image" ;;
        esac
    done
fi
report
