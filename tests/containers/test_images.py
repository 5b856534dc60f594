"""Our images as they are on this machine, and the linters over the files that make them.

The images are tested where an engine has them (`make images`); otherwise the tests say SKIPPED. The
linters come from the project's tool environment, beside the Python that runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
LIMIT = 60_000_000
TAG = os.environ.get("MUSTER_VERSION", "dev")
# image, binary, structure file
IMAGES = [
    ("muster/cli", "muster", "structure.cli.yaml"),
    ("muster/gateway", "muster-gateway", "structure.service.yaml"),
    ("muster/scheduler", "muster-scheduler", "structure.service.yaml"),
]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)


def image(name: str) -> dict[str, object] | None:
    """What the engine says of an image; None without engine or image."""
    try:
        done = run("docker", "image", "inspect", f"{name}:{TAG}")
    except FileNotFoundError:
        return None
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


class Images(unittest.TestCase):
    def setUp(self) -> None:
        missing = [name for name, _, _ in IMAGES if image(name) is None]
        if missing:
            self.skipTest(f"SKIPPED: this machine has no image {', '.join(missing)}; `make images` makes them")

    def test_small(self) -> None:
        for name, _, _ in IMAGES:
            self.assertLessEqual(int(str((image(name) or {})["Size"])), LIMIT, name)

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
                bill = json.loads(Path(folder, "bill.json").read_text())
                self.assertEqual(bill["metadata"]["component"]["name"], binary)
                self.assertGreater(len(bill["components"]), 100)
                for crate in bill["components"]:
                    self.assertTrue(crate["name"] and crate["version"] and crate["purl"].startswith("pkg:cargo/"))

    @staticmethod
    def structure(name: str, file: str) -> subprocess.CompletedProcess[str]:
        return run(TOOLS / "container-structure-test", "test", "--image", name, "--config", f"deploy/docker/{file}")


class Bill(unittest.TestCase):
    def test_a_bill_that_misses_a_crate_is_refused(self) -> None:
        whole = run("tools/scripts/sbom.py", "--binary", "muster-scheduler")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "bill.json")
            file.write_text(whole.stdout)
            self.assertEqual(run("tools/scripts/sbom.py", "--binary", "muster-scheduler", "--check", file).returncode, 0)
            bill = json.loads(whole.stdout)
            del bill["components"][7]
            file.write_text(json.dumps(bill, indent=1) + "\n")
            self.assertEqual(run("tools/scripts/sbom.py", "--binary", "muster-scheduler", "--check", file).returncode, 1)


class Linters(unittest.TestCase):
    def test_dockerfiles(self) -> None:
        done = run(TOOLS / "hadolint", "deploy/docker/Dockerfile", "deploy/docker/Dockerfile.host")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_scripts(self) -> None:
        scripts = [*ROOT.glob("tools/scripts/*.sh"), *ROOT.glob("deploy/redis/*.sh")]
        self.assertGreater(len(scripts), 8)
        done = run(TOOLS / "shellcheck", *scripts)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Secrets(unittest.TestCase):
    def test_made_once_and_never_overwritten(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "env")
            done = run("tools/scripts/secrets.sh", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
            text = file.read_text()
            values = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
            for secret in ("MUSTER_API_KEY", "REDIS_PASSWORD", "NATS_PASSWORD"):
                self.assertRegex(values[secret], "^[a-z][0-9a-f]{40}$")
                self.assertNotIn(values[secret], done.stdout + done.stderr)
            again = run("tools/scripts/secrets.sh", file)
            self.assertEqual(again.returncode, 1)
            self.assertIn("left as it is", again.stderr)
            self.assertEqual(file.read_text(), text)
            self.assertEqual(os.listdir(folder), ["env"])


if __name__ == "__main__":
    unittest.main()
