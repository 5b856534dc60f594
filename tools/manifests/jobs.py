"""Jobs named by their content. The chart computes the same hash, so both forms agree."""

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

from .objects import Objects, name


def content_hash(job: Dict[str, Any]) -> str:
    """Eight digits of the Job's spec. The same as Helm's `spec | toJson | sha256sum | trunc 8`."""
    text = json.dumps(job.get("spec"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for letter, escaped in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(letter, escaped)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def renames(objects: Objects) -> List[Tuple[str, str]]:
    """Old and new name of every Job whose name does not tell its content."""
    found = []
    for job in objects.of("Job"):
        stem, _, _ = name(job).rpartition("-")
        wanted = f"{stem}-{content_hash(job)}"
        if wanted != name(job):
            found.append((name(job), wanted))
    return found


def write(objects: Objects, folder: Path) -> List[str]:
    """Writes the right names into the files below `folder`; what was changed."""
    changed = []
    for old, new in renames(objects):
        for path in sorted(folder.rglob("*.yaml")):
            text = path.read_text()
            if f"name: {old}\n" in text:
                path.write_text(text.replace(f"name: {old}\n", f"name: {new}\n"))
                changed.append(f"{path}: {old} -> {new}")
    return changed
