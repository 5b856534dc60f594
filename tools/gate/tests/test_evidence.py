"""How evidence is read: the workers' log, containers as the engine describes them, secrets in files."""

import json
import stat
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict

from gate.model import Red
from gate.stacks.base import Replica, Stack
from gate.stacks.compose import ComposeStack, _published, _replica
from gate.workers import Execution, log_file, read_log


def container(service: str, ports: Dict[str, Any], **env: str) -> Dict[str, Any]:
    return {
        "Id": "0123", "Name": f"/p_{service}_1",
        "Config": {"Labels": {"com.docker.compose.service": service}, "Env": [f"{k}={v}" for k, v in env.items()]},
        "HostConfig": {"PortBindings": ports}, "State": {"Pid": 7, "Status": "running"},
    }


class Log(unittest.TestCase):
    def test_a_line_is_an_execution_and_half_a_line_is_none(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(read_log(Path(folder), "t"), [])
            log_file(Path(folder), "t").write_text("a 1 10 w1\nb 2 11\nc 1 1")
            self.assertEqual(read_log(Path(folder), "t"), [Execution("a", 1, 10, "w1"), Execution("b", 2, 11, "")])


class Containers(unittest.TestCase):
    def test_replicas_have_the_names_that_the_rest_of_the_stack_knows(self) -> None:
        ports = {"9092/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9192"}], "8081/tcp": [{"HostIp": "", "HostPort": "8083"}]}
        second = _replica(container("gateway-2", ports, MUSTER_INSTANCE_ID="gateway-2"))
        self.assertEqual((second.name, second.service), ("gateway-2", "gateway"))
        self.assertEqual((second.http, second.admin), ("http://127.0.0.1:8083", "http://127.0.0.1:9192"))
        self.assertEqual(_replica(container("scheduler", {})).name, "scheduler-1")
        self.assertEqual(_replica(container("redis-3", {})).service, "redis")
        self.assertEqual(_replica(container("redis-exporter", {})).service, "redis-exporter")

    def test_of_two_bindings_the_one_on_loopback_is_used(self) -> None:
        both = [{"HostIp": "127.0.0.1", "HostPort": "1"}, {"HostIp": "0.0.0.0", "HostPort": "2"}]
        for bindings in (both, both[::-1]):
            self.assertEqual(_published(container("gateway", {"9092/tcp": bindings})), {"9092/tcp": "127.0.0.1:1"})


class Readiness(unittest.TestCase):
    def test_a_replica_that_does_not_answer_is_told_with_the_end_of_its_log(self) -> None:
        class Restarting(Stack):
            """Its scheduler was running when it was looked at, and is gone when it is asked."""

            def replicas(self, service: Any = None) -> Any:
                return [Replica("scheduler-1", "scheduler", 7, admin="http://127.0.0.1:1")]

            def logs(self, replica: Replica) -> str:
                return "starting\nERROR WRONGPASS\nbye\n"

        with self.assertRaisesRegex(Red, r"not ready within 0 s: scheduler-1: .*; its log ends with: ERROR WRONGPASS"):
            Restarting().wait_ready(0.0)


class Files(unittest.TestCase):
    def test_secrets_are_private_and_an_unset_one_is_left_out(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "docker-compose.yml"
            base.write_text('version: "3.8"\nservices: {}\n')
            stack = ComposeStack("p", [base], Path(folder), {}, ours=True)
            stack.scratch = Path(folder)
            path = stack._env_file({"A": "1", "B": None})
            self.assertEqual(path.read_text(), "A=1\n")
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            made = json.loads(stack._override_file(0, {"services": {"x": {}}}).read_text())
            self.assertEqual(made, {"version": "3.8", "services": {"x": {}}})

    def test_a_replica_that_is_not_there_is_named(self) -> None:
        class Empty(ComposeStack):
            def inspected(self) -> Any:
                return []

        with self.assertRaisesRegex(Red, "no gateway-9"):
            Empty("p", [], Path("."), {}, ours=False).replica("gateway-9")
