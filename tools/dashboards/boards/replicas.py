"""Replicas and their loops: who leads, whether loops tick, which locks were lost."""

from ..model import Board, Row, Variable, graph, table

P = 'pod=~"$pod"'

BOARD = Board(
    uid="muster-replicas",
    title="Muster / Replicas and loops",
    description="Each replica by its label pod: who leads what, how loops tick, what was repaired.",
    variables=[Variable("pod", "Replica", "muster_build_info", "pod")],
    rows=[
        Row("Replicas", [
            table("Versions", "The replicas that answer, and which version each runs.", "none",
                  f"muster_build_info{{{P}}}"),
            graph("Answering replicas", "Replicas that answer a scrape, beside those that should and those that announce themselves in Redis.", "none",
                  ("muster:replicas_up:sum", "{{job}} up"), ("muster:replicas_wanted:max", "{{job}} wanted"),
                  ("max by (service) (muster_replicas)", "{{service}} announced")),
            graph("Requests by replica", "Requests per second that each gateway answered.", "reqps",
                  (f"sum by (pod) (rate(muster_http_request_duration_seconds_count{{{P}}}[$__rate_interval]))", "{{pod}}")),
            graph("Jobs ended by replica", "Jobs per second whose end each replica wrote.", "ops",
                  (f"sum by (pod) (rate(muster_jobs_total{{{P}}}[$__rate_interval]))", "{{pod}}")),
        ]),
        Row("Leaders", [
            graph("Who leads", "1 on the replica that leads the loop.", "none",
                  (f"muster_leader{{{P}}} == 1", "{{loop}}: {{pod}}")),
            graph("Leaders per loop", "How many replicas lead each loop. 1 is right, and more for a loop with shards; 0 for longer than 15 s is not.", "none",
                  ("muster:loop_leaders:sum", "{{loop}}")),
            graph("Lost locks", "Locks lost before they were released, within ten minutes.", "none",
                  ("muster:lease_lost:increase10m", "{{lock}}")),
            graph("Stale writes", "Reports under an old fence that were refused, within ten minutes.", "none",
                  ("muster:stale_writes:increase10m", "{{event}}")),
        ]),
        Row("Loops", [
            graph("Ticks", "Passes of each loop per second.", "ops",
                  (f"sum by (loop) (rate(muster_loop_ticks_total{{{P}}}[$__rate_interval]))", "{{loop}}")),
            graph("Ticks that went wrong", "Passes per second that failed, panicked, overran or lost their lock.", "ops",
                  (f'sum by (loop, outcome) (rate(muster_loop_ticks_total{{{P},outcome!="ok"}}[$__rate_interval]))',
                   "{{loop}} {{outcome}}")),
            graph("Repairs", "What the reconciler, the scrub and the reread did, per second.", "ops",
                  (f"sum by (action) (rate(muster_reconciled_total{{{P}}}[$__rate_interval]))", "{{action}}")),
            graph("Panics", "Panics that were caught, by task. Must stay 0.", "none",
                  (f"sum by (pod, task) (muster_task_panics_total{{{P}}})", "{{pod}} {{task}}")),
        ]),
        Row("Watchers", [
            graph("Event streams", "Clients that watch events on each gateway.", "none",
                  (f"sum by (pod) (muster_event_streams{{{P}}})", "{{pod}}")),
            graph("Age of the count", "How old the count of living jobs is.", "s",
                  ("max(muster_census_age_seconds)", "count")),
        ]),
    ],
)
