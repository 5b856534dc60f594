"""Gate 28, cluster alerts: what gate 21 does, for the alerts that need clustered stores.

Gate 21 runs on one Redis and one NATS. An alert about copies of a stream cannot fire there, so it is drilled here, on the
cluster overlay, with the same rules and the same patience.
"""

from .. import Context, Control, Gate
from ..drills import CLUSTER
from ..model import CONTAINERS
from .g21_alerts import deaf, play_all, with_drill_rules


def run(ctx: Context) -> None:
    found = ctx.stack.replicas("nats")
    ctx.expect(len(found) >= 3, f"three NATS nodes are needed, and {len(found)} run")
    play_all(ctx, with_drill_rules(ctx), CLUSTER)


GATE = Gate(
    number=28,
    name="cluster alerts",
    passes_when="the alerts about clustered stores fire for their real fault and resolve; a real Prometheus sees it",
    run=run,
    controls=[
        Control("an alert that is loaded and does not fire", deaf("MusterNatsReplicasLagging"),
                r"MusterNatsReplicasLagging did not fire for a NATS node down", CONTAINERS, inside=True),
    ],
    needs=CONTAINERS,
    overlays=("ha", "cluster"),
    limit_s=420.0,
)
