#!/usr/bin/env bash
# Renders a Kustomize folder to stdout: kustomize.sh FOLDER. Uses `kustomize` or `kubectl` when the
# machine has one; otherwise it fetches Debian's own kustomize package with apt, unpacks it into a
# private folder and runs it from there. Nothing gets installed on the machine.
# MUSTER_KUSTOMIZE names the program to use instead ("kubectl kustomize", "/path/kustomize build").
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

[ $# -eq 1 ] || { say "usage: $0 FOLDER | --which"; exit 2; }

cache="${MUSTER_KUSTOMIZE_CACHE:-$HOME/.cache/muster/kustomize}"
private="$cache/usr/bin/kustomize"

# The package of this release when it has one, else that of Debian 13: it is a Go program that needs
# only glibc 2.34. apt's lists go into a private folder; the machine's mirror and keys are used.
fetch() {
    command -v apt-get >/dev/null 2>&1 || die "neither kustomize nor kubectl is installed" "install one of them"
    local work mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    work="$(mktemp -d)"
    # shellcheck disable=SC2064 # the folder's name is known now, and gone when the trap runs
    trap "rm -rf '$work'" RETURN
    # shellcheck disable=SC2016 # apt itself replaces these names
    mirror="$(apt-get indextargets --format '$(SITE) $(REPO_URI)' 2>/dev/null | awk '$2 ~ /\/debian\/?$/ { print $2; exit }')"
    [ -n "$mirror" ] && [ -f "$keyring" ] \
        || die "neither kustomize nor kubectl is installed, and apt knows no Debian mirror to fetch kustomize from" "install one of them"
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/etc"
    printf 'deb [signed-by=%s] %s trixie main\n' "$keyring" "$mirror" > "$work/etc/sources.list"
    : > "$work/status"
    local options=(
        -o "Dir::Etc::SourceList=$work/etc/sources.list" -o "Dir::Etc::SourceParts=/dev/null"
        -o "Dir::State::Lists=$work/lists" -o "Dir::State::status=$work/status"
        -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives"
        -o "APT::Sandbox::User=$(id -un)" -o "Acquire::Languages=none"
    )
    say "fetching Debian's kustomize package"
    { apt-get -qq "${options[@]}" update && (cd "$work" && apt-get -qq "${options[@]}" download kustomize); } >&2 \
        || die "apt could not fetch kustomize from Debian 13" "see its output above; or install kubectl or kustomize"
    mkdir -p "$cache"
    dpkg-deb -x "$work"/kustomize_*.deb "$work/root"
    # A rename of one file is atomic: a second caller sees the whole program or none.
    mkdir -p "$(dirname "$private")"
    mv -f "$work/root/usr/bin/kustomize" "$private"
}

if [ -n "${MUSTER_KUSTOMIZE:-}" ]; then
    read -r -a program <<< "$MUSTER_KUSTOMIZE"
elif command -v kustomize >/dev/null 2>&1; then
    program=(kustomize build)
elif command -v kubectl >/dev/null 2>&1; then
    program=(kubectl kustomize)
else
    [ -x "$private" ] || fetch
    program=("$private" build)
fi

if [ "$1" = --which ]; then
    printf '%s\n' "${program[*]}"
    exit 0
fi
[ -d "$1" ] || die "$1 is not a folder"
# Without further flags, as `kubectl apply -k` does it.
exec "${program[@]}" "$1"
