"""The stack of a gate: a running one, or one that is started for the gates.

`close` removes a stack that was started here, unless it should be kept. At most one such stack runs at a time; gates
with the same overlays share it.
"""

import os
import re
import sys
from pathlib import Path
from typing import Dict, Optional, Tuple

from .model import Gate, Red, Skip
from .stacks import engine
from .stacks.base import ROOT, Stack
from .stacks.compose import ComposeStack
from .stacks.dev import DevStack
from .stacks.images import build


class Pool:
    """Callable: returns the stack of a gate."""

    def __init__(self, scratch: Path, up: bool, project: Optional[str], state_file: Optional[Path], keep: bool) -> None:
        self.scratch, self.up, self.project, self.state_file, self.keep = scratch, up, project, state_file, keep
        self._given: Optional[Stack] = None
        self._own: Optional[ComposeStack] = None
        self._key: Tuple[object, ...] = ()
        self._version: Optional[str] = None

    def __call__(self, gate: Gate) -> Stack:
        if self.up:
            return self._started(gate)
        if self._given is None:
            self._given = self._running()
        return self._given

    def close(self) -> None:
        """Removes the stack that was started here."""
        if self._own is None:
            return
        if self.keep:
            print(f"== kept: compose project {self._own.project}; its settings and secrets: {self.scratch}\n"
                  f"== use it again with --project {self._own.project}; remove it with\n"
                  f"==   docker ps -aq --filter label=com.docker.compose.project={self._own.project} | xargs docker rm -fv",
                  file=sys.stderr)
        else:
            self._own.down()
        self._own = None

    def _running(self) -> Stack:
        if self.state_file:
            return DevStack(self.state_file)
        if self.project:
            return ComposeStack.running(self.project, self.scratch)
        # Without a flag: the stack of this folder's compose files, else that of `muster dev`.
        usual = usual_project(ROOT)
        if engine.present() is None and engine.containers(usual):
            return ComposeStack.running(usual, self.scratch)
        if Path(".muster/stack.json").is_file():
            return DevStack(Path(".muster/stack.json"))
        raise Skip(f"no stack runs here (compose project {usual!r}, or .muster/stack.json): start one with --up, or name one "
                   "by --project or --state-file")

    def _started(self, gate: Gate) -> ComposeStack:
        missing = engine.present()
        if missing:
            raise Skip(f"--up needs a container engine: {missing}")
        key = (gate.overlays, gate.profiles)
        if self._own is not None and key == self._key:
            return self._own
        self.close()
        self._version = self._version or build(self.scratch)
        self._own, self._key = ComposeStack.own(gate.overlays, gate.profiles, self.scratch, self._version), key
        print(f"== starting {self._own.project} from {', '.join(f.name for f in self._own.files)}", file=sys.stderr)
        _patiently(self._own)
        took = self._own.wait_ready(90)
        print(f"== {self._own.project} is ready {took:.1f} s after `up`", file=sys.stderr)
        return self._own


def usual_project(folder: Path) -> str:
    """The name that compose gives a project of this folder: COMPOSE_PROJECT_NAME from the environment or from `.env`, where
    `make secrets` writes it, else the folder's name without the characters that compose forbids."""
    named = os.environ.get("COMPOSE_PROJECT_NAME") or env_file(folder / ".env").get("COMPOSE_PROJECT_NAME")
    return named or re.sub(r"[^a-z0-9_-]", "", folder.name.lower()).lstrip("_-")


def env_file(path: Path) -> Dict[str, str]:
    """The names and values in a file such as `.env`; empty if it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.strip().split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#")]
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


def _patiently(stack: ComposeStack) -> None:
    """Calls `up`, up to three times while a store is unhealthy: on a busy machine its health check is too late for compose,
    which then fails. Gate 1 tests how a stack starts; this does not."""
    for left in (2, 1, 0):
        try:
            return stack.up()
        except Red as refused:
            if not left or "unhealthy" not in str(refused):
                raise
            print(f"== trying again: {str(refused)[-120:]}", file=sys.stderr, flush=True)
