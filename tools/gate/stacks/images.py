"""Images for a stack of the gate's own: the programs that cargo built last on this host, in seconds.

Debug builds do as well, so the gate can run in `make test` without an optimised build. The tag is our
own, so images that were built for use are never replaced.
"""

import os
import subprocess
import sys
from pathlib import Path

from ..model import Red, Skip
from .base import ROOT, find_program

TAG = "gate"
SCRIPTS = ROOT / "tools/scripts"


def build(scratch: Path) -> str:
    """Makes ours, and stand-ins for those of others that cannot be pulled; the tag of ours.

    MUSTER_VERSION names images that are there already: nothing is built then.
    """
    ready = os.environ.get("MUSTER_VERSION")
    if ready:
        return ready
    folder = Path(find_program("muster")).parent
    _run([str(SCRIPTS / "standins.sh")])
    names = _run([str(SCRIPTS / "images.sh"), "--print"]).split()
    programs = {name: _program(name) for name in names}
    staged = scratch / "images"
    _run([str(SCRIPTS / "stage_images.sh"), str(folder), str(staged), *programs.values()])
    for name, program in programs.items():
        # The label says how the programs were built: tests/containers/images.py judges the size of optimised ones only.
        command = ["docker", "build", "--quiet", "--tag", f"{name.split(':')[0]}:{TAG}", "--label", f"muster.profile={folder.name}"]
        command += ["--file", str(ROOT / "deploy/docker/Dockerfile.host")]
        command += ["--target", "cli"] if program == "muster" else ["--target", "service", "--build-arg", f"BINARY={program}"]
        _run([*command, str(staged)])
    print(f"== images from {folder}, tag {TAG}: {', '.join(programs.values())}", file=sys.stderr, flush=True)
    return TAG


def _program(image: str) -> str:
    """muster/gateway:dev → muster-gateway; the CLI's is muster."""
    service = image.split(":")[0].rpartition("/")[2]
    return "muster" if service == "cli" else f"muster-{service}"


def _run(command: "list[str]") -> str:
    if not Path(command[0]).is_file() and "/" in command[0]:
        raise Skip(f"{command[0]} is not there")
    environment = {name: value for name, value in os.environ.items() if name != "MUSTER_VERSION"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Red(f"{' '.join(command[:3])} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout
