#!/usr/bin/env python3
"""Bill of materials of one binary: every crate with version, licence and checksum, as CycloneDX 1.5.

Knows two sources: `cargo tree` says which crates a binary is made of (for this machine's target and
the binary's own features), Cargo.lock says which bytes they are. Crates that only run while
compiling have the scope "excluded". The output is the same for the same lock file: no clock, no
random serial number.

  tools/scripts/sbom.py --binary muster-gateway > muster-gateway.cdx.json
  tools/scripts/sbom.py --check muster-gateway.cdx.json --binary muster-gateway
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# How Cargo.lock marks a crate that came from a registry.
REGISTRY = "registry+"


class Crate(NamedTuple):
    """One crate of the closure."""

    name: str
    version: str
    licence: str


def cargo(*args: str) -> str:
    """Output of a cargo command; its error ends the program."""
    done = subprocess.run(["cargo", *args], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: cargo {' '.join(args)} failed\n{done.stderr}")
    return done.stdout


def package_of(binary: str) -> str:
    """Name of the package that makes a binary."""
    members = json.loads(cargo("metadata", "--locked", "--no-deps", "--format-version", "1"))["packages"]
    made = {
        target["name"]: package["name"]
        for package in members
        for target in package["targets"]
        if "bin" in target["kind"]
    }
    if binary not in made:
        sys.exit(f"error: no package of this workspace makes {binary}\nhint:  there are {', '.join(sorted(made))}")
    return made[binary]


def closure(package: str, edges: str) -> set[Crate]:
    """All crates that a package reaches by edges of these kinds."""
    form = "{p}\t{l}"
    lines = cargo("tree", "--locked", "-p", package, "--edges", edges, "--prefix", "none", "--format", form)
    crates = set()
    for line in lines.splitlines():
        # "serde v1.0.0 (proc-macro)\tMIT OR Apache-2.0 (*)"
        found = re.match(r"(\S+) v(\S+)[^\t]*\t(.*?)( \(\*\))?$", line)
        if not found:
            sys.exit(f"error: cargo tree printed a line that is not a crate: {line!r}")
        crates.add(Crate(found[1], found[2], found[3].strip()))
    return crates


def checksums() -> dict[tuple[str, str], str]:
    """SHA-256 of every crate from a registry, by name and version, from Cargo.lock."""
    sums = {}
    for block in (ROOT / "Cargo.lock").read_text().split("[[package]]"):
        field = dict(re.findall(r'^(\w+) = "(.*)"$', block, re.MULTILINE))
        if field.get("source", "").startswith(REGISTRY) and "checksum" in field:
            sums[field["name"], field["version"]] = field["checksum"]
    return sums


def component(crate: Crate, scope: str, checksum: str | None) -> dict[str, object]:
    """A crate as CycloneDX has it."""
    entry: dict[str, object] = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{crate.name}@{crate.version}",
        "name": crate.name,
        "version": crate.version,
        "scope": scope,
        "purl": f"pkg:cargo/{crate.name}@{crate.version}",
    }
    if crate.licence:
        # Old crates write MIT/Apache-2.0, which is no SPDX expression.
        entry["licenses"] = [{"expression": crate.licence.replace("/", " OR ")}]
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def bill(binary: str) -> dict[str, object]:
    """The whole document for one binary."""
    package = package_of(binary)
    linked = closure(package, "normal,no-proc-macro")
    compiled = closure(package, "normal,build")
    sums = checksums()
    (own,) = (crate for crate in linked if crate.name == package)
    components = [
        component(crate, "required" if crate in linked else "excluded", sums.get((crate.name, crate.version)))
        for crate in sorted(linked | compiled)
        if crate != own
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"pkg:cargo/{own.name}@{own.version}",
                "name": binary,
                "version": own.version,
                "licenses": [{"expression": own.licence}],
            }
        },
        "components": components,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="bill of materials of one binary, as CycloneDX JSON")
    parser.add_argument("--binary", required=True, help="name of the binary, such as muster-gateway")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare FILE with what it should be")
    args = parser.parse_args()
    text = json.dumps(bill(args.binary), indent=1) + "\n"
    if args.check is None:
        sys.stdout.write(text)
    elif args.check.read_text() != text:
        sys.exit(f"error: {args.check} is not the bill of {args.binary} for this Cargo.lock")


if __name__ == "__main__":
    main()
