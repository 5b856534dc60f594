"""The page one opens first: is all well, what comes in, what goes out, what waits."""

from ..model import Board, Row, graph, number

RED_ABOVE_0 = ((0, "green"), (0.000001, "red"))
RED_AT_0 = ((0, "red"), (1, "green"))

BOARD = Board(
    uid="muster-overview",
    title="Muster / Overview",
    description="Is all well? Jobs and runs in and out, what waits, and the promises that must hold.",
    rows=[
        Row("Now", [
            number("Gateways", "Gateways that answer a scrape.", "none",
                   'muster:replicas_up:sum{job="muster-gateway"}', "gateways", steps=RED_AT_0, width=3),
            number("Schedulers", "Schedulers that answer a scrape.", "none",
                   'muster:replicas_up:sum{job="muster-scheduler"}', "schedulers", steps=RED_AT_0, width=3),
            number("Workflow services", "Replicas of the workflow service that answer a scrape.", "none",
                   'muster:replicas_up:sum{job="muster-workflow"}', "replicas", steps=RED_AT_0, width=3),
            number("Alerts", "Alerts that fire. The runbooks are in docs/operate/alerts.md.", "none",
                   'count(ALERTS{alertstate="firing",alertname=~"Muster.+"}) or vector(0)', "alerts", steps=RED_ABOVE_0, width=3),
            number("Consistency gap", "Accepted jobs that the last scrub found without a home. Must be 0.", "none",
                   "max(muster_consistency_gap)", "jobs", steps=RED_ABOVE_0, width=3),
            number("Overdue jobs", "Jobs whose look is more than 10 s late. Above 0 for long: no reconciler, or a slow one.",
                   "none", "max(muster_overdue_jobs)", "jobs", steps=RED_ABOVE_0, width=3),
            number("Overdue runs", "Runs of workflows whose look is more than 10 s late. Above 0 for long: a shard has no owner, or a slow one.",
                   "none", "max(muster_overdue_runs)", "runs", steps=RED_ABOVE_0, width=3),
            number("Loops without a leader", "Leader loops that no replica leads. A take-over lasts 15 s at most.", "none",
                   "count(muster:loop_leaders:sum == 0) or vector(0)", "loops", steps=RED_ABOVE_0, width=3),
        ]),
        Row("Jobs", [
            graph("Jobs that end", "Jobs that ended per second, by how.", "ops",
                  ("sum by (state) (muster:jobs_ended:rate1m)", "{{state}}"), stack=True),
            graph("Jobs that live", "Living jobs by state, as the snapshot's leader counts them.", "none",
                  ("sum by (state) (muster_jobs_current)", "{{state}}"), stack=True),
            graph("Waiting and runnable", "Jobs that wait to be started, and those of them that a free worker could start.",
                  "none", ("sum(muster_queue_depth)", "waiting"), ("sum(muster_queue_runnable)", "runnable")),
            graph("Oldest waiting job", "How long the oldest waiting job of each topic has waited.", "s",
                  ("max by (topic) (muster_queue_oldest_age_seconds)", "{{topic}}")),
            graph("Acceptance to dispatch", "From a job's acceptance to its first dispatch.", "s",
                  ("histogram_quantile(0.5, sum by (le) (rate(muster_dispatch_latency_seconds_bucket[$__rate_interval])))", "p50"),
                  ("histogram_quantile(0.99, sum by (le) (rate(muster_dispatch_latency_seconds_bucket[$__rate_interval])))", "p99")),
            graph("Dead letters", "Jobs that ended badly within ten minutes, by topic, and all that are kept.", "none",
                  ("muster:bad_ends:increase10m", "{{topic}} in 10 min"), ("max(muster_dead_letters_current)", "kept")),
        ]),
        Row("Runs", [
            graph("Runs that end", "Runs of workflows that ended per second, by how.", "ops",
                  ("sum by (state) (rate(muster_runs_total[$__rate_interval]))", "{{state}}"), width=8, stack=True),
            graph("Steps that end", "Steps of runs that ended per second, by how; of items only those that failed.", "ops",
                  ("sum by (state) (rate(muster_run_steps_total[$__rate_interval]))", "{{state}}"), width=8, stack=True),
            graph("Start to end of runs", "From the start of a run to its end, delays and waits included.", "s",
                  ("histogram_quantile(0.5, sum by (le) (rate(muster_run_duration_seconds_bucket[$__rate_interval])))", "p50"),
                  ("histogram_quantile(0.99, sum by (le) (rate(muster_run_duration_seconds_bucket[$__rate_interval])))", "p99"),
                  width=8),
            graph("Lag of timers", "How late timers of runs act: the 99th percentile.", "s",
                  ("muster:run_timer_lag_seconds:p99_5m", "p99"), width=8),
            graph("Owners of shards", "How many of the 16 shards of runs each replica owns.", "none",
                  ("max by (pod) (muster_run_shards)", "{{pod}}"), width=8, stack=True),
            graph("Saves that met another", "Saves of runs per second that found that another replica had saved the run.", "ops",
                  ("sum(rate(muster_run_save_conflicts_total[$__rate_interval]))", "conflicts"), width=8),
        ]),
        Row("API", [
            graph("Requests", "Requests per second by status.", "reqps",
                  ("sum by (status) (rate(muster_http_request_duration_seconds_count[$__rate_interval]))", "{{status}}"),
                  width=8, stack=True),
            graph("Slowest routes", "The 99th percentile of the answer time by route; long polls are meant to be long.", "s",
                  ("topk(8, muster:http_request_seconds:p99_5m)", "{{route}}"), width=8),
            graph("Refused by a limit", "Requests per second that a rate limit refused.", "reqps",
                  ("sum(rate(muster_rate_limit_hits_total[$__rate_interval]))", "refused"), width=8),
        ]),
    ],
)
