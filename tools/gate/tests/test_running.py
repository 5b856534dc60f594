"""How the gate finds a stack that runs already, and the programs that it needs, also under `sudo`."""

import os
import pwd
import tempfile
import unittest
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from gate import Skip
from gate.cli import give_back
from gate.pool import env_file, usual_project
from gate.stacks import base


class Project(unittest.TestCase):
    def setUp(self) -> None:
        held = ExitStack()
        self.addCleanup(held.close)
        self.folder = Path(held.enter_context(tempfile.TemporaryDirectory())) / "My Stack.1"
        self.folder.mkdir()
        held.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("COMPOSE_PROJECT_NAME", None)

    def test_the_folder_gives_the_name_as_compose_writes_it(self) -> None:
        self.assertEqual(usual_project(self.folder), "mystack1")

    def test_the_file_that_make_secrets_writes_says_another(self) -> None:
        (self.folder / ".env").write_text("# COMPOSE_PROJECT_NAME=no\nCOMPOSE_PROJECT_NAME=muster\nREDIS_PASSWORD=a=b\n")
        self.assertEqual(usual_project(self.folder), "muster")
        self.assertEqual(env_file(self.folder / ".env")["REDIS_PASSWORD"], "a=b")

    def test_the_environment_wins(self) -> None:
        (self.folder / ".env").write_text("COMPOSE_PROJECT_NAME=muster\n")
        with mock.patch.dict(os.environ, COMPOSE_PROJECT_NAME="other"):
            self.assertEqual(usual_project(self.folder), "other")

    def test_the_example_names_the_project_of_the_documents(self) -> None:
        self.assertEqual(env_file(base.ROOT / ".env.example")["COMPOSE_PROJECT_NAME"], "muster")


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        held = ExitStack()
        self.addCleanup(held.close)
        self.home = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(mock.patch.dict(os.environ, HOME=str(self.home / "root"), PATH=""))
        for name in ("CARGO_TARGET_DIR", "MUSTER_BIN", "SUDO_USER"):
            os.environ.pop(name, None)
        held.enter_context(mock.patch.object(base, "ROOT", self.home / "checkout"))

    def built(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "muster").write_text("")
        return folder / "muster"

    def test_what_is_nowhere_is_said_in_one_line(self) -> None:
        with self.assertRaises(Skip) as missing:
            base.find_program("muster")
        self.assertIn("make build", str(missing.exception))
        self.assertNotIn("\n", str(missing.exception))

    def test_sudo_finds_what_its_caller_has_built(self) -> None:
        program = self.built(self.home / "ann/.cache/muster/target/release")
        ann = pwd.struct_passwd(("ann", "x", 1000, 1000, "", str(self.home / "ann"), "/bin/sh"))
        with mock.patch.dict(os.environ, SUDO_USER="ann"), mock.patch.object(os, "geteuid", return_value=0), \
                mock.patch.object(pwd, "getpwnam", return_value=ann):
            self.assertEqual(base.find_program("muster"), str(program))

    def test_the_folder_that_is_named_wins(self) -> None:
        self.built(self.home / "root/.cache/muster/target/release")
        named = self.built(self.home / "named")
        with mock.patch.dict(os.environ, MUSTER_BIN=str(named.parent)):
            self.assertEqual(base.find_program("muster"), str(named))


class Ownership(unittest.TestCase):
    def test_what_a_run_under_sudo_made_goes_to_its_caller(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "g19").mkdir()
            (Path(folder) / "g19/log").write_text("")
            with mock.patch.dict(os.environ, SUDO_UID="1234", SUDO_GID="1235"), \
                    mock.patch.object(os, "geteuid", return_value=0), mock.patch.object(os, "chown") as chown:
                give_back([Path(folder)])
        given = {Path(call.args[0]).name: call.args[1:3] for call in chown.call_args_list}
        self.assertEqual(given, {Path(folder).name: (1234, 1235), "g19": (1234, 1235), "log": (1234, 1235)})

    def test_without_sudo_nothing_changes_hands(self) -> None:
        with mock.patch.dict(os.environ), mock.patch.object(os, "chown") as chown:
            os.environ.pop("SUDO_UID", None)
            give_back([Path(".")])
        chown.assert_not_called()


if __name__ == "__main__":
    unittest.main()
