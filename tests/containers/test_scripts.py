"""What makes the images: their lists of crates, the linters over Dockerfiles and scripts, and `make secrets`.

The linters come from the project's tool environment, beside the Python that runs this.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)


def shell_scripts() -> list[Path]:
    """Every shell script of the repository: by its suffix, or by its first line."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed.returncode != 0:
        raise unittest.SkipTest(f"SKIPPED: git does not list the files of this folder: {listed.stderr.strip()}")
    found = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in found if path.suffix == ".sh" or re.match(rb"#!.*\b(ba)?sh\s", path.read_bytes()[:64])]


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
        scripts = shell_scripts()
        self.assertGreater(len(scripts), 20)
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
            for secret in ("MUSTER_API_KEY", "REDIS_PASSWORD", "NATS_PASSWORD", "GRAFANA_PASSWORD"):
                self.assertRegex(values[secret], "^[a-z][0-9a-f]{40}$")
                self.assertNotIn(values[secret], done.stdout + done.stderr)
            again = run("tools/scripts/secrets.sh", file)
            self.assertEqual(again.returncode, 1)
            self.assertIn("left as it is", again.stderr)
            self.assertEqual(file.read_text(), text)
            self.assertEqual(os.listdir(folder), ["env"])


if __name__ == "__main__":
    unittest.main()
