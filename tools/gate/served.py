"""Uses the stack's own worker containers for a gate: they serve its topic and write its log."""

from typing import Any, Dict

from .context import Context


def serve_from_containers(ctx: Context, topic: str, lease_ms: int = 10_000) -> Dict[str, Any]:
    """Creates the worker containers again so that they serve this topic; returns the compose override.

    `ctx.executions(topic)` has their executions. The end of the run restores them as in the compose files.
    """
    names = [each.name for each in ctx.stack.replicas("worker")]
    ctx.expect(names, "the stack has no worker containers")
    # The containers run as another user.
    ctx.folder.chmod(0o777)
    changed = {}
    for name in names:
        command = ["worker", "run", "--topic", topic, "--builtin", "drill", "--count-file", f"/evidence/executions-{topic}.log"]
        command += ["--id", name, "--concurrency", "8", "--lease", f"{lease_ms}ms"]
        changed[name] = {"command": command, "volumes": [f"{ctx.folder.resolve()}:/evidence"]}
    override = {"services": changed}
    ctx.defer(lambda: ctx.stack.up(services=names))
    ctx.stack.up(overrides=[override], services=names)
    return override
