#!/usr/bin/env bash
# Makes the virtual environment with the project's Python tools and prints its bin folder, the only
# line on stdout: bin="$(tools/scripts/python_tools.sh)". The environment lives in $MUSTER_TOOLS,
# by default ~/.cache/muster/tools. It is made when it is missing, and filled again when
# tools/requirements.txt or the machine's Python changed; otherwise this script only prints.
# Several callers at once are safe: one installs, the others wait for it.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ $# -lt 2 ] || say "hint:  $2"; exit 1; }

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
requirements="$root/tools/requirements.txt"
venv="${MUSTER_TOOLS:-$HOME/.cache/muster/tools}"
python="${PYTHON:-python3}"
stamp="$venv/.installed"

[ $# -eq 0 ] || { say "usage: $0   (makes the tool environment, prints its bin folder)"; exit 2; }
command -v "$python" >/dev/null 2>&1 || die "$python is not installed" "on Debian and Ubuntu: apt-get install python3 python3-venv"

# What the environment was made from. Any difference means: install again.
wanted="$("$python" -c 'import sys; print(sys.version)') $(sha256sum < "$requirements")"
current() { [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; }

if current; then
    printf '%s\n' "$venv/bin"
    exit 0
fi

mkdir -p "$venv"
exec 9>"$venv.lock"
flock -w 600 9 || die "another installation into $venv has not ended after 10 minutes" "remove $venv.lock if no such process is left"
if current; then
    printf '%s\n' "$venv/bin"
    exit 0
fi

# Debian splits the module that makes environments into a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    command -v apt-get >/dev/null 2>&1 || die "$python cannot make virtual environments" "install the package with Python's venv module"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "installing python3-venv needs root" "run as root, or install sudo, or: apt-get install python3-venv"
        as_root=(sudo)
    fi
    say "installing python3-venv"
    "${as_root[@]}" apt-get -qq update >&2 || say "warning: apt-get update failed; trying with the package lists that are there"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends python3-venv >&2 \
        || die "apt-get could not install python3-venv" "see its output above"
fi

say "installing the Python tools into $venv"
rm -f "$stamp"
# --clear only where the interpreter changed or is gone: a running tool keeps its files otherwise.
fresh=()
[ -x "$venv/bin/python" ] && [ "$("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" = "$("$python" -c 'import sys; print(sys.version)')" ] || fresh=(--clear)
"$python" -m venv "${fresh[@]}" "$venv" >&2 || die "$python could not make the environment $venv" "see its output above"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --requirement "$requirements" >&2 \
    || die "pip could not install tools/requirements.txt" \
        "pip's own message is above. 'No matching distribution' or a connection error means that pip cannot reach its package index: check the network, or name an index with PIP_INDEX_URL"

printf '%s' "$wanted" > "$stamp"
printf '%s\n' "$venv/bin"
