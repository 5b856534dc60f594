#!/usr/bin/env bash
# Prints the path of a Compose 2 binary, for testing the compose files with both versions on one
# machine. Takes the installed plug-in if there is one; otherwise unpacks Debian 13's package into
# the cache folder. Nothing is installed: Debian's package would replace docker-compose 1.29.
#
#   COMPOSE="$(tools/scripts/compose2.sh)" make compose-up HA=1
set -euo pipefail

die() { printf 'error: %s\n' "$1" >&2; exit 1; }

cache="${MUSTER_CACHE:-$HOME/.cache/muster}/compose2"
if docker compose version >/dev/null 2>&1; then echo "docker compose"; exit 0; fi
if [ -x "$cache/docker-compose" ]; then echo "$cache/docker-compose"; exit 0; fi
command -v apt-get >/dev/null 2>&1 || die "no Compose 2 here, and only Debian's package is known to this script"

# The mirror that this machine uses for its own release.
mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -E '^(URIs:|deb) ' \
    | grep -oE 'https?://[^ ]+' | grep -v security | head -1 || true)"
[ -n "$mirror" ] || die "no Debian mirror in /etc/apt"

apt="$(mktemp -d)"
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc} "$cache"
printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$mirror" > "$apt/etc/sources.list"
options=(-qq -o "Dir::Etc::SourceList=$apt/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Debug::NoLocking=true -o APT::Sandbox::User=root)
apt-get "${options[@]}" update >&2
(cd "$apt" && apt-get "${options[@]}" download docker-compose >&2)
dpkg-deb -x "$apt"/docker-compose_*.deb "$apt/unpacked"
# The binary is a plug-in of the docker command and also runs by itself.
binary="$(find "$apt/unpacked" -type f -name docker-compose -perm -u+x | head -1)"
[ -n "$binary" ] || die "Debian's package holds no docker-compose"
install -m 755 "$binary" "$cache/docker-compose"
"$cache/docker-compose" version >&2
echo "$cache/docker-compose"
