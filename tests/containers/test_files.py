"""The container files against each other: what one file says twice, or two files say together.

No engine is needed. Compose itself checks the files only where it is installed: both versions, if
both are there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BASE, HA, CLUSTER = "docker-compose.yml", "docker-compose.ha.yaml", "docker-compose.cluster.yaml"
SECRETS = {"MUSTER_API_KEY": "k" * 40, "REDIS_PASSWORD": "r" * 40, "NATS_USER": "muster", "NATS_PASSWORD": "n" * 40}
# Every profile of the files; without them compose would leave those services out of what it checks.
PROFILES = ("grafana", "traces")
# Images without a shell or a client of their own, or without anything to ask.
NO_HEALTH_CHECK = {"worker", "worker-2", "otel-collector"}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def services(*names: str) -> dict[str, dict[str, Any]]:
    """Services that are defined in full by these files; overlays that only change one are left out."""
    found = {}
    for name in names:
        found.update({key: value for key, value in load(name)["services"].items() if "image" in value})
    return found


def composes() -> list[list[str]]:
    """Every Compose that is installed here."""
    found = [["docker-compose"]] if shutil.which("docker-compose") else []
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        found.append(["docker", "compose"])
    private = Path(os.environ.get("MUSTER_CACHE", Path.home() / ".cache/muster")) / "compose2/docker-compose"
    return [*found, [str(private)]] if private.exists() else found


class Hardening(unittest.TestCase):
    def test_every_container_is_confined(self) -> None:
        for name, service in services(BASE, HA, CLUSTER).items():
            with self.subTest(name):
                self.assertTrue(service["read_only"])
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertEqual(service["restart"], "unless-stopped")
                self.assertRegex(service["user"], r"^[1-9]\d*:\d+$")
                self.assertIn("mem_limit", service)
                self.assertIn("cpus", service)
                self.assertEqual("healthcheck" in service, name not in NO_HEALTH_CHECK)

    def test_only_the_api_can_be_opened(self) -> None:
        for name, service in services(BASE, HA, CLUSTER).items():
            for port in service.get("ports", []):
                with self.subTest(f"{name} {port}"):
                    api = name.startswith("gateway") and port.endswith(":8081")
                    self.assertTrue(port.startswith("${MUSTER_BIND:-127.0.0.1}:" if api else "127.0.0.1:"))

    def test_no_secret_has_a_default(self) -> None:
        for name in (BASE, HA, CLUSTER):
            for secret in SECRETS:
                self.assertNotIn("${" + secret + ":-", (ROOT / name).read_text(), name)


class Agreement(unittest.TestCase):
    def test_blocks_that_the_overlays_repeat_are_the_same(self) -> None:
        base, ha, cluster = load(BASE), load(HA), load(CLUSTER)
        for block in ("x-hardened", "x-service", "x-stores"):
            self.assertEqual(base[block], ha[block], block)
        self.assertEqual(base["x-hardened"], cluster["x-hardened"])
        for store in ("redis", "nats"):
            for key in ("image", "user", "mem_limit", "cpus", "stop_grace_period"):
                self.assertEqual(base["services"][store][key], cluster[f"x-{store}"][key], f"{store} {key}")

    def test_second_replicas_differ_only_in_name_and_ports(self) -> None:
        first, second = services(BASE), services(HA)
        self.assertEqual(set(second), {f"{name}-2" for name in ("gateway", "scheduler", "workflow", "worker")})
        for name, service in second.items():
            twin = first[name.removesuffix("-2")]
            for key in sorted(set(service) | set(twin)):
                a, b = repr(twin.get(key)), repr(service.get(key))
                if key in ("environment", "command"):
                    a, b = (re.sub(r"(gateway|scheduler|workflow|worker)-[12]", r"\1-N", text) for text in (a, b))
                if key != "ports":
                    self.assertEqual(a, b, f"{name} {key}")

    def test_the_cluster_overlay_moves_every_user_of_the_stores(self) -> None:
        changed = load(CLUSTER)["services"]
        for name, service in services(BASE, HA).items():
            if {"REDIS_URL", "NATS_URL"} & set(service.get("environment", {})):
                self.assertEqual(changed[name]["environment"], load(CLUSTER)["x-stores"], name)
        for store in ("redis", "nats"):
            self.assertEqual(changed[store], {"scale": 0})

    def test_every_replica_is_a_target(self) -> None:
        for compose, targets in ((BASE, "single"), (HA, "ha")):
            listed = {
                target
                for group in yaml.safe_load((ROOT / f"deploy/prometheus/targets/{targets}.yml").read_text())
                for target in group["targets"]
            }
            for name, service in services(compose).items():
                if "MUSTER_INSTANCE_ID" in service.get("environment", {}):
                    port = service["ports"][-1].rsplit(":", 1)[1]
                    self.assertIn(f"{name}:{port}", listed, targets)

    def test_every_variable_is_in_the_example_with_its_default(self) -> None:
        example = dict(re.findall(r"^#?([A-Z_0-9]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
        for name in (BASE, HA, CLUSTER):
            for variable, default in re.findall(r"\$\{([A-Z_0-9]+)(?::-([^}]*))?", (ROOT / name).read_text()):
                self.assertIn(variable, example, f"{name} uses it")
                if default:
                    self.assertEqual(example[variable], default, f"{variable} in {name}")

    def test_every_profile_is_known_here(self) -> None:
        named = {profile for service in services(BASE, HA, CLUSTER).values() for profile in service.get("profiles", [])}
        self.assertEqual(named, set(PROFILES))

    def test_the_collector_reads_a_file_that_fits_together(self) -> None:
        collector = load("deploy/otel/collector.yaml")
        kinds = ("receivers", "processors", "exporters")
        for name, pipeline in collector["service"]["pipelines"].items():
            self.assertIn(name.split("/")[0], ("traces", "metrics", "logs"))
            for kind in kinds:
                self.assertTrue(pipeline[kind] or kind == "processors", f"{name} has no {kind}")
                self.assertEqual(set(pipeline[kind]) - set(collector[kind]), set(), f"{kind} that {name} names")
            # What limits memory comes first: the others would take spans that it refuses.
            self.assertEqual(pipeline["processors"][0], "memory_limiter")
        used = {each for pipeline in collector["service"]["pipelines"].values() for kind in kinds for each in pipeline[kind]}
        self.assertEqual({each for kind in kinds for each in collector[kind]}, used, "parts that no pipeline names")
        service = services(BASE)["otel-collector"]
        port = service["ports"][0].rsplit(":", 1)[1]
        self.assertEqual(collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"], f"0.0.0.0:{port}")
        limiter = collector["processors"]["memory_limiter"]
        self.assertEqual(service["mem_limit"], "256m")
        self.assertLess(limiter["limit_mib"] + limiter["spike_limit_mib"], 256)
        example = re.search(r"^#OTEL_EXPORTER_OTLP_ENDPOINT=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
        self.assertEqual(example and example.group(1), f"http://otel-collector:{port}")

    def test_dockerfile_and_script_build_the_same_binaries(self) -> None:
        script = (ROOT / "tools/scripts/images.sh").read_text()
        listed = dict(re.findall(r"^    (\w+):([\w-]+)$", script, re.MULTILINE))
        (binaries,) = re.findall(r'^ARG BINARIES="(.*)"$', (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
        self.assertEqual(sorted(listed.values()), sorted(binaries.split()))
        built = {
            service["image"].split(":")[0]: service["build"].get("args", {}).get("BINARY", "muster")
            for service in services(BASE, HA).values()
            if "build" in service
        }
        self.assertEqual(built, {f"muster/{image}": binary for image, binary in listed.items()})


class Compose(unittest.TestCase):
    def config(self, compose: list[str], *files: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*compose, "--project-name", "check"]
        for file in files:
            command += ["-f", str(ROOT / file)]
        keep = {key: value for key, value in os.environ.items() if key not in SECRETS}
        # An empty file, so that a .env of this checkout does not take part.
        with tempfile.NamedTemporaryFile() as empty:
            command += ["--env-file", empty.name, *(word for name in PROFILES for word in ("--profile", name)), "config"]
            return subprocess.run(command, env={**keep, **environment}, capture_output=True, text=True)

    def test_every_compose_accepts_every_combination(self) -> None:
        found = composes()
        if not found:
            self.skipTest("SKIPPED: no Docker Compose on this machine")
        for compose in found:
            for files in ((BASE,), (BASE, HA), (BASE, HA, CLUSTER)):
                with self.subTest(f"{compose} {files}"):
                    done = self.config(compose, *files, **SECRETS)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("WARN", done.stderr.upper())
                    shown = yaml.safe_load(done.stdout)["services"]
                    self.assertEqual(set(services(*files)) - set(shown), set(), "services that compose leaves out")

    def test_both_versions_were_asked(self) -> None:
        versions = {subprocess.run([*each, "version", "--short"], capture_output=True, text=True).stdout.strip(): each for each in composes()}
        majors = {version.lstrip("v").split(".")[0] for version in versions}
        missing = [name for name, major in (("Compose 1.29", "1"), ("Compose 2", "2")) if major not in majors]
        if missing:
            self.skipTest(f"SKIPPED: {' and '.join(missing)} is not on this machine, so the files were not checked with it")

    def test_a_missing_secret_is_refused_with_the_way_out(self) -> None:
        found = composes()
        if not found:
            self.skipTest("SKIPPED: no Docker Compose on this machine")
        for compose in found:
            for secret in SECRETS:
                with self.subTest(f"{compose} {secret}"):
                    done = self.config(compose, BASE, **{key: value for key, value in SECRETS.items() if key != secret})
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn("make secrets", done.stderr)


class NatsStorage(unittest.TestCase):
    """The limits of the account and of the server are set together."""

    def environment(self, service: dict[str, Any], **given: str) -> dict[str, str]:
        """The environment of a service as Compose would make it."""
        def value(found: re.Match[str]) -> str:
            return {**SECRETS, **given}.get(found[1], found[2] or "")

        return {key: re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", value, text) for key, text in service["environment"].items()}

    def test_a_single_server_starts_with_any_storage(self) -> None:
        nats = shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin")
        if not nats:
            self.skipTest("SKIPPED: this machine has no nats-server")
        for storage in [{}, {"NATS_STORAGE": "12GB"}, {"NATS_STORAGE": "64MB"}]:
            with self.subTest(**storage), tempfile.TemporaryDirectory() as folder:
                config = Path(folder) / "nats.conf"
                text = (ROOT / "deploy/nats/nats.conf").read_text()
                config.write_text(text.replace("store_dir: /tmp\n", f'store_dir: "{folder}"\n'))
                command = [nats, "--config", str(config), "--addr", "127.0.0.1", "--port", "-1", "--http_port", "-1"]
                server = subprocess.Popen(
                    command, env=self.environment(services(BASE)["nats"], **storage), stderr=subprocess.PIPE, text=True
                )
                said = []
                for line in server.stderr or []:
                    said.append(line)
                    if "Server is ready" in line:
                        break
                server.kill()
                server.communicate()
                self.assertIn("Server is ready", "".join(said))

    def test_the_nodes_of_a_cluster_have_room_for_the_account(self) -> None:
        nodes = [service for name, service in services(CLUSTER).items() if name.startswith("nats-")]
        sizes = [self.environment(node) for node in nodes]
        rooms = [int(size["NATS_NODE_STORAGE"].removesuffix("GB")) for size in sizes]
        self.assertEqual({size["NATS_STORAGE"] for size in sizes}, {f"{sum(rooms)}GB"})


if __name__ == "__main__":
    unittest.main()
