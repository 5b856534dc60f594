"""tools/scripts/grafana_check.py against a small fake Grafana: a good one, one that refuses, one whose query fails."""

import base64
import importlib.util
import io
import json
import os
import threading
import unittest
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Tuple
from unittest import mock

from dashboards import expressions

SCRIPT = expressions.ROOT / "tools/scripts/grafana_check.py"
LOGIN = "Basic " + base64.b64encode(b"admin:the-password").decode()


class Grafana(ThreadingHTTPServer):
    """As much of Grafana's HTTP API as the check uses. `refuses` is the title of a dashboard, `fails` an expression."""

    daemon_threads = True

    def __init__(self, refuses: str = "", fails: str = "", sources: Tuple[str, ...] = ("loki", "prometheus")) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.refuses, self.fails, self.sources = refuses, fails, sources
        self.folders: List[str] = []
        self.removed: List[str] = []
        self.boards: List[Dict[str, Any]] = []
        self.queries: List[Dict[str, Any]] = []

    def answer(self, method: str, path: str, body: Any) -> Tuple[int, Any]:
        """Status and JSON, as Grafana answers."""
        if (method, path) == ("GET", "/api/datasources"):
            return 200, [{"uid": f"the-{kind}", "type": kind} for kind in self.sources]
        if (method, path) == ("POST", "/api/folders"):
            self.folders.append(body["uid"])
            return 200, {"uid": body["uid"]}
        if (method, path) == ("POST", "/api/dashboards/db"):
            if body["dashboard"]["title"].startswith(self.refuses or "nothing"):
                return 400, {"message": "Bad dashboard data"}
            self.boards.append(body)
            return 200, {"status": "success"}
        if (method, path) == ("POST", "/api/ds/query"):
            query = body["queries"][0]
            self.queries.append(query)
            fault = {"error": "bad_data: parse error"} if self.fails and self.fails in query["expr"] else {"frames": []}
            return 200, {"results": {query["refId"]: fault}}
        if method == "DELETE" and path.startswith("/api/folders/"):
            self.removed.append(path.split("/")[-1].split("?")[0])
            return 200, {}
        return 404, {"message": "Not found"}


class Answers(BaseHTTPRequestHandler):
    """Gives each request to the fake."""

    server: Grafana

    def _any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        status, said = self.server.answer(self.command, self.path, body)
        if self.headers.get("Authorization") != LOGIN:
            status, said = 401, {"message": "Invalid username or password"}
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = _any

    def log_message(self, *_words: Any) -> None:
        """Nothing."""


def check(grafana: Grafana, password: str = "the-password") -> Tuple[int, str]:
    """The exit code of the script, and what it printed."""
    spec = importlib.util.spec_from_file_location("grafana_check", SCRIPT)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    threading.Thread(target=grafana.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    printed = io.StringIO()
    try:
        with mock.patch.dict(os.environ, GRAFANA_PASSWORD=password, GRAFANA_USER="admin"), redirect_stdout(printed), \
                redirect_stderr(printed), mock.patch("sys.argv", ["grafana_check.py", f"http://127.0.0.1:{grafana.server_port}/"]):
            code = script.main()
    finally:
        grafana.shutdown()
        grafana.server_close()
    return code, printed.getvalue()


class GrafanaCheck(unittest.TestCase):
    def setUp(self) -> None:
        self.boards = expressions.boards()
        self.targets = [target for board in self.boards.values() for panel in board["panels"] for target in panel.get("targets", [])]

    def test_a_good_grafana_gets_every_dashboard_and_every_query(self) -> None:
        grafana = Grafana()
        code, printed = check(grafana)
        self.assertEqual(code, 0, printed)
        self.assertEqual(len(grafana.boards), len(self.boards))
        self.assertEqual(len(grafana.queries), len(self.targets))
        self.assertEqual({query["datasource"]["uid"] for query in grafana.queries}, {"the-prometheus"})
        self.assertFalse([query["expr"] for query in grafana.queries if "$" in query["expr"]], "variables that were not filled in")
        # The dashboards that the user has are left alone.
        self.assertFalse({board["dashboard"]["uid"] for board in grafana.boards} & {board["uid"] for board in self.boards.values()})
        self.assertEqual({board["folderUid"] for board in grafana.boards}, set(grafana.folders))
        self.assertEqual(grafana.removed, grafana.folders)

    def test_a_refused_dashboard_fails_and_is_named_and_the_others_are_tried(self) -> None:
        title = next(iter(self.boards.values()))["title"]
        grafana = Grafana(refuses=title)
        code, printed = check(grafana)
        self.assertEqual(code, 1)
        self.assertRegex(printed, f"error: {title}: refused: POST /api/dashboards/db: 400 .*Bad dashboard data")
        self.assertEqual(len(grafana.boards), len(self.boards) - 1)
        self.assertEqual(grafana.removed, grafana.folders)

    def test_a_failing_query_fails_and_is_named_and_the_others_are_asked(self) -> None:
        name, board = next(iter(self.boards.items()))
        panel = next(panel for panel in board["panels"] if panel.get("targets"))
        grafana = Grafana(fails=panel["targets"][0]["expr"].split("$")[0])
        code, printed = check(grafana)
        self.assertEqual(code, 1)
        self.assertIn(f"error: {board['title']}: {panel['title']}: bad_data: parse error", printed)
        self.assertIn(f"FAIL  {name}", printed)
        self.assertEqual(len(grafana.queries), len(self.targets))
        self.assertEqual(grafana.removed, grafana.folders)

    def test_a_grafana_without_prometheus_fails(self) -> None:
        grafana = Grafana(sources=("loki",))
        code, printed = check(grafana)
        self.assertEqual(code, 1)
        self.assertIn("error: this Grafana has no Prometheus as a datasource", printed)
        self.assertEqual(grafana.folders, [])

    def test_a_wrong_password_fails(self) -> None:
        code, printed = check(Grafana(), password="another")
        self.assertEqual(code, 1)
        self.assertIn("401", printed)


if __name__ == "__main__":
    unittest.main()
