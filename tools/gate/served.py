"""The stack's own worker containers, put to work for a gate: they serve its topic and write its log."""

from typing import Any, Dict

from .context import Context


def serve_from_containers(ctx: Context, topic: str, lease_ms: int = 10_000) -> Dict[str, Any]:
    """Makes the worker containers again so that they serve this topic; the override that did it.

    Their executions are in `ctx.executions(topic)`. When the run ends they are what the compose files say.
    """
    names = [each.name for each in ctx.stack.replicas("worker")]
    ctx.expect(names, "the stack has no worker containers")
    # The containers' user is not ours.
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
