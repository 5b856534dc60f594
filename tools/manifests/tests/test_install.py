"""What a user does first: overlays of his own, secrets, the chart with and without values."""

import base64
import os
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Dict, List

from manifests import jobs, quantity, render
from manifests.__main__ import examine
from manifests.objects import Objects

SCRIPT = render.ROOT / "deploy/k8s/new_overlay.sh"


def make(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(SCRIPT), *options, str(folder)], capture_output=True, text=True, timeout=60, check=False)


def secrets(objects: Objects) -> Dict[str, str]:
    """Every key of every Secret, decoded."""
    found = {}
    for secret in objects.of("Secret"):
        for key, value in secret.get("data", {}).items():
            found[key] = base64.b64decode(value).decode()
    return found


def nodes(store: str, credentials: str, count: int, port: int) -> List[str]:
    """A whole URL for every node, as the services want it."""
    return [f"{store}://{credentials}@{store}-{number}.{store}:{port}" for number in range(count)]


class NewOverlay(unittest.TestCase):
    def setUp(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name) / "mine"

    def objects(self) -> Objects:
        return Objects(render.load(render.run([str(render.ROOT / "tools/manifests/kustomize.sh"), str(self.folder)])))

    def test_it_has_fresh_secrets_and_passes_every_check(self) -> None:
        for options in ((), ("--monitoring", "--demo-worker"), ("--registry", "registry.example.com/team", "--tag", "1.2.3")):
            with self.subTest(options):
                self.folder = self.folder.with_name("-".join(("mine", *options)).replace("/", "-"))
                self.assertEqual(make(self.folder, *options).returncode, 0)
                objects = self.objects()
                self.assertEqual([str(finding) for finding in examine(objects)], [])
                values = secrets(objects)
                self.assertEqual([key for key, value in values.items() if "replace me" in value or len(value) < 6], [])
                self.assertEqual(values["REDIS_URL"].split(","), nodes("redis", f":{values['REDIS_PASSWORD']}", 6, 6379))
                self.assertEqual(values["NATS_URL"].split(","), nodes("nats", f"{values['NATS_USER']}:{values['NATS_PASSWORD']}", 3, 4222))

    def test_its_files_are_private_and_never_overwritten(self) -> None:
        self.assertEqual(make(self.folder).returncode, 0)
        for path in self.folder.iterdir():
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o077, 0, path)
        before = (self.folder / "stores.env").read_text()
        again = make(self.folder)
        self.assertEqual(again.returncode, 1)
        self.assertIn("exists and is left as it is", again.stderr)
        self.assertEqual((self.folder / "stores.env").read_text(), before)

    def test_images_come_from_the_registry_that_was_named(self) -> None:
        make(self.folder, "--registry", "registry.example.com/team", "--tag", "1.2.3")
        images = {container["image"] for workload in self.objects().workloads() for container in workload.containers}
        wanted = {f"registry.example.com/team/muster/{service}:1.2.3" for service in ("gateway", "scheduler", "workflow")}
        self.assertLessEqual(wanted, images)

    def test_own_stores_brings_no_store_and_asks_for_urls(self) -> None:
        made = make(self.folder, "--own-stores")
        self.assertIn("write the URLs of your stores", made.stderr)
        objects = self.objects()
        self.assertEqual(objects.of("StatefulSet", "Job"), [])
        self.assertIn("replace me", secrets(objects)["REDIS_URL"])
        self.assertEqual([str(finding) for finding in examine(objects)], [])

    def test_misuse_is_explained(self) -> None:
        self.assertEqual(make(self.folder, "--own-store").returncode, 2)
        self.assertEqual(make(self.folder, "--own-stores", "--demo-worker").returncode, 2)
        self.assertFalse(self.folder.exists())


class Placeholders(unittest.TestCase):
    """The repository holds no usable secret. A blank in a value is what all four programs refuse."""

    def test_every_committed_secret_is_a_placeholder(self) -> None:
        for name in ("overlays/ha", "overlays/own-stores"):
            values = secrets(render.variant(name).render())
            self.assertTrue(values)
            for key, value in values.items():
                self.assertRegex(value, r"^<replace me: ", f"{name}: {key}")

    def test_redis_and_nats_refuse_it(self) -> None:
        rendered = render.variant("overlays/ha").render()
        placeholder = secrets(rendered)["REDIS_PASSWORD"]
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin", "REDISCLI_AUTH": placeholder}

        def login(user: str, password: str) -> None:
            nats = rendered.get("StatefulSet", "nats")
            variables = {each["name"]: each.get("value", "") for each in nats["spec"]["template"]["spec"]["containers"][0]["env"]}
            routes = variables["NATS_ROUTES"].replace("$(NATS_USER)", user).replace("$(NATS_PASSWORD)", password)
            environment.update(NATS_USER=user, NATS_PASSWORD=password, NATS_ROUTES=routes, POD_NAME="nats-0")

        def run(command: List[str]) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)

        with tempfile.TemporaryDirectory() as folder:
            # The folder of the data, /data, is in the image only.
            for name in ("start.sh", "redis.conf"):
                text = (render.ROOT / "deploy/redis" / name).read_text().replace("dir /data", f"dir {folder}")
                (Path(folder) / name).write_text(text)
            redis = run(["sh", f"{folder}/start.sh", "--port", "0"])
        self.assertNotEqual(redis.returncode, 0)
        self.assertIn("requirepass", redis.stdout + redis.stderr)
        login(placeholder, placeholder)
        nats = run(["nats-server", "--config", str(render.ROOT / "deploy/k8s/components/stores/nats.conf"), "-t"])
        self.assertNotEqual(nats.returncode, 0)
        login("muster", "n0123456789abcdef")
        nats = run(["nats-server", "--config", str(render.ROOT / "deploy/k8s/components/stores/nats.conf"), "-t"])
        self.assertEqual(nats.returncode, 0, nats.stderr)


class Chart(unittest.TestCase):
    def template(self, *options: str) -> str:
        return render.Variant("chart", helm=options).text()

    def test_without_secrets_it_refuses_and_says_which(self) -> None:
        with self.assertRaisesRegex(render.RenderError, "is not set. Give it with --set"):
            self.template()

    def test_a_placeholder_is_refused(self) -> None:
        with self.assertRaisesRegex(render.RenderError, "secrets.apiKey"):
            self.template(*render.CHART_SECRETS, "--set", "secrets.apiKey=<replace me>")

    def test_its_urls_name_every_node_of_the_stores(self) -> None:
        found = {key: value for obj in render.load(self.template(*render.CHART_SECRETS)) if obj["kind"] == "Secret"
                 for key, value in obj["stringData"].items()}
        self.assertEqual(found["REDIS_URL"].split(","), nodes("redis", f":{found['REDIS_PASSWORD']}", 6, 6379))
        self.assertEqual(found["NATS_URL"].split(","), nodes("nats", f"{found['NATS_USER']}:{found['NATS_PASSWORD']}", 3, 4222))

    def test_an_unknown_value_is_refused(self) -> None:
        with self.assertRaisesRegex(render.RenderError, "replicas"):
            self.template(*render.CHART_SECRETS, "--set", "services.gateway.replicas=3")

    def test_a_new_service_is_one_block_of_values(self) -> None:
        block = ("--set", "services.workflow.adminPort=9093,services.workflow.autoscaling.min=2,services.workflow.autoscaling.max=4,"
                 "services.workflow.autoscaling.cpuPercent=70,services.workflow.resources.requests.cpu=100m,"
                 "services.workflow.resources.requests.memory=64Mi,services.workflow.resources.limits.cpu=1,"
                 "services.workflow.resources.limits.memory=128Mi")
        objects = Objects(render.load(self.template(*render.CHART_SECRETS, *block)))
        kinds = {obj["kind"] for obj in objects.all if obj["metadata"]["name"].startswith("workflow")}
        self.assertEqual(kinds, {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"})


class Parts(unittest.TestCase):
    def test_quantities(self) -> None:
        for text, value in (("500m", "0.5"), ("1Gi", "1073741824"), ("2", "2"), (2, "2"), ("1e3", "1000"), ("0.5", "0.5"), ("1k", "1000")):
            self.assertEqual(quantity.parse(text), quantity.Decimal(value), text)
        for text in ("64mb", "1 Gi", "", "Gi", None, True, "1GiB", "--1"):
            self.assertIsNone(quantity.parse(text), text)

    def test_a_job_is_renamed_when_its_content_changes(self) -> None:
        job = {"kind": "Job", "metadata": {"name": "make-00000000"}, "spec": {"a": "x < y & z"}}
        one = jobs.renames(Objects([job]))
        self.assertEqual(one, [("make-00000000", f"make-{jobs.content_hash(job)}")])
        job["metadata"]["name"] = one[0][1]
        self.assertEqual(jobs.renames(Objects([job])), [])
        job["spec"]["a"] = "other"
        self.assertNotEqual(jobs.renames(Objects([job])), [])

    def test_a_key_twice_is_refused(self) -> None:
        with self.assertRaisesRegex(render.RenderError, "twice"):
            render.load("a: 1\na: 2\n")


if __name__ == "__main__":
    unittest.main()
