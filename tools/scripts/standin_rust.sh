#!/usr/bin/env bash
# A stand-in for the Rust image of deploy/docker/Dockerfile: Debian's C compiler, make, awk and Python,
# and this machine's own Rust. Called by standins.sh --build-from-source; takes about a minute.
#
#   standin_rust.sh IMAGE
set -euo pipefail

die() { printf 'error: %s\n' "$1" >&2; exit 1; }

[ $# -eq 1 ] || { printf 'usage: %s IMAGE\n' "$0" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || die "making the Rust stand-in needs root"
"$(dirname "$0")/setup.sh" rust-image

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# The release and the mirror that this machine itself uses.
# shellcheck source=/dev/null
release="$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")"
mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -E '^(URIs:|deb) ' \
    | grep -oE 'https?://[^ ]+' | grep -v security | head -1 || true)"
[ -n "$mirror" ] || die "no Debian mirror in /etc/apt"
mmdebstrap --quiet --variant=extract --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=base-files,bash,dash,coreutils,findutils,grep,sed,mawk,tar,gzip,gcc,libc6-dev,make,python3,ca-certificates \
    "$release" "$work/root" "deb $mirror $release main"

# What installation scripts would have made: /bin/sh, cc, awk, certificates, a list of users.
root="$work/root"
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
[ -e "$root/usr/bin/cc" ] || ln -s gcc "$root/usr/bin/cc"
[ -e "$root/usr/bin/awk" ] || ln -s mawk "$root/usr/bin/awk"
mkdir -p "$root/etc/ssl/certs" "$root/usr/local/cargo"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0:root:/root:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\n' > "$root/etc/group"
rm -rf "${root:?}"/dev "${root:?}"/var/cache/apt

sysroot="$(rustc --print sysroot)"
tar -C "$sysroot" -c bin/cargo bin/rustc lib | tar -C "$root/usr/local" --no-same-owner -x
tar -C "$root" --numeric-owner -cf "$work/root.tar" .

docker import \
    --change "LABEL muster.stand-in=\"$(rustc --version) of this machine, Debian $release\"" \
    --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin CARGO_HOME=/usr/local/cargo SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
    --change 'CMD ["bash"]' "$work/root.tar" "$1" >/dev/null
