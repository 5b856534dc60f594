"""Our images as the engine has them: what they hold, who runs in them, how large they are, which crates they name.

`make images-check` runs this, for the images with the tag MUSTER_VERSION (`dev`); `make test` runs it for those that the
production gate has just built. Images that must be there are named by MUSTER_IMAGES=required; without it, and without an
engine, the tests say SKIPPED. The list of crates is compared with this checkout's Cargo.lock, so images of an older
checkout fail.
"""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path

from test_scripts import TOOLS, run

LIMIT = 60_000_000
TAG = os.environ.get("MUSTER_VERSION") or "dev"
REQUIRED = os.environ.get("MUSTER_IMAGES") == "required"
# image, binary, structure file
IMAGES = [
    ("muster/cli", "muster", "structure.cli.yaml"),
    ("muster/gateway", "muster-gateway", "structure.service.yaml"),
    ("muster/scheduler", "muster-scheduler", "structure.service.yaml"),
    ("muster/workflow", "muster-workflow", "structure.service.yaml"),
]


def engine() -> str | None:
    """None when an engine answers, else why there is none."""
    try:
        done = run("docker", "version", "--format", "{{.Server.Version}}")
    except FileNotFoundError:
        return "docker is not installed"
    return None if done.returncode == 0 else f"no docker engine answers: {done.stderr.strip()[:200]}"


def image(name: str) -> dict[str, object] | None:
    """What the engine says of an image."""
    done = run("docker", "image", "inspect", f"{name}:{TAG}")
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


class Images(unittest.TestCase):
    def setUp(self) -> None:
        without = engine()
        if without:
            self.skipTest(f"SKIPPED: {without}")
        missing = [f"{name}:{TAG}" for name, _, _ in IMAGES if image(name) is None]
        if missing and REQUIRED:
            self.fail(f"this machine has no image {', '.join(missing)}")
        if missing:
            self.skipTest(f"SKIPPED: this machine has no image {', '.join(missing)}; `make images` makes them")

    def test_small(self) -> None:
        debug = []
        for name, _, _ in IMAGES:
            found = image(name) or {}
            size, labels = int(str(found["Size"])), dict(found["Config"].get("Labels") or {})  # type: ignore[attr-defined]
            if size > LIMIT and labels.get("muster.profile") == "debug":
                debug.append(f"{name} {size // 1_000_000} MB")
            else:
                self.assertLessEqual(size, LIMIT, name)
        if debug:
            self.skipTest(f"SKIPPED: the limit of {LIMIT // 1_000_000} MB is for optimised programs; these hold debug builds and are larger: {', '.join(debug)}")

    def test_structure(self) -> None:
        for name, _, structure in IMAGES:
            with self.subTest(name):
                done = self.structure(f"{name}:{TAG}", structure)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_structure_fails_for_an_image_with_a_shell_and_root(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(
                f"FROM muster/gateway:{TAG}\nUSER 0\nCOPY sh /bin/sh\n"
            )
            Path(folder, "sh").write_text("no shell at all")
            broken = "muster/broken-by-test:dev"
            built = run("docker", "build", "--quiet", "--tag", broken, folder)
            self.assertEqual(built.returncode, 0, built.stderr)
            try:
                done = self.structure(broken, "structure.service.yaml")
            finally:
                run("docker", "image", "rm", broken)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, "no shell")

    def test_every_crate_is_named(self) -> None:
        for name, binary, _ in IMAGES:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                made = run("docker", "create", f"{name}:{TAG}").stdout.strip()
                try:
                    copied = run("docker", "cp", f"{made}:/usr/share/sbom/muster.cdx.json", f"{folder}/bill.json")
                finally:
                    run("docker", "rm", made)
                self.assertEqual(copied.returncode, 0, copied.stderr)
                checked = run("tools/scripts/sbom.py", "--binary", binary, "--check", f"{folder}/bill.json")
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
                bill = json.loads(Path(folder, "bill.json").read_text())
                self.assertEqual(bill["metadata"]["component"]["name"], binary)
                self.assertGreater(len(bill["components"]), 100)
                for crate in bill["components"]:
                    self.assertTrue(crate["name"] and crate["version"] and crate["purl"].startswith("pkg:cargo/"))

    @staticmethod
    def structure(name: str, file: str) -> subprocess.CompletedProcess[str]:
        return run(TOOLS / "container-structure-test", "test", "--image", name, "--config", f"deploy/docker/{file}")



if __name__ == "__main__":
    unittest.main()
