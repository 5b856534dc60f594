"""One topic, or several: how long its jobs wait and run, how they end, and whether workers suffice."""

from ..model import Board, Row, Variable, graph

T = 'topic=~"$topic"'


def quantile(q: str, metric: str) -> str:
    return f"histogram_quantile({q}, sum by (topic, le) (rate({metric}_bucket{{{T}}}[$__rate_interval])))"


BOARD = Board(
    uid="muster-topic",
    title="Muster / Topic",
    description="Jobs of the chosen topics: wait, duration, ends, queue and workers.",
    variables=[Variable("topic", "Topic", "muster_queue_depth", "topic")],
    rows=[
        Row("Flow", [
            graph("Jobs that end", "Jobs that ended per second, by topic and how.", "ops",
                  (f"sum by (topic, state) (muster:jobs_ended:rate1m{{{T}}})", "{{topic}} {{state}}")),
            graph("Attempts that end", "Attempts that ended per second, by outcome. More attempts than jobs: retries.", "ops",
                  (f"sum by (topic, outcome) (rate(muster_job_attempts_total{{{T}}}[$__rate_interval]))",
                   "{{topic}} {{outcome}}")),
        ]),
        Row("Time", [
            graph("Wait", "From runnable to started.", "s", (quantile("0.5", "muster_job_wait_seconds"), "{{topic}} p50"),
                  (quantile("0.99", "muster_job_wait_seconds"), "{{topic}} p99")),
            graph("Duration", "From the start of the last attempt to the job's end.", "s",
                  (quantile("0.5", "muster_job_duration_seconds"), "{{topic}} p50"),
                  (quantile("0.99", "muster_job_duration_seconds"), "{{topic}} p99")),
            graph("Oldest waiting job", "How long the oldest waiting job has waited.", "s",
                  (f"max by (topic) (muster_queue_oldest_age_seconds{{{T}}})", "{{topic}}")),
            graph("Oldest running attempt", "How long the oldest running attempt has been running.", "s",
                  (f"max by (topic) (muster_oldest_running_age_seconds{{{T}}})", "{{topic}}")),
        ]),
        Row("Queue and workers", [
            graph("Waiting", "Jobs that wait to be started: pending, queued or offered.", "none",
                  (f"sum by (topic) (muster_queue_depth{{{T}}})", "{{topic}}"), width=8),
            graph("Runnable", "Waiting jobs that a free worker could start. Scale workers on this.", "none",
                  (f"sum by (topic) (muster_queue_runnable{{{T}}})", "{{topic}}"), width=8),
            graph("Workers", "Live workers that take the topic.", "none",
                  (f"sum by (topic) (muster_workers{{{T}}})", "{{topic}}"), width=8),
            graph("Jobs by state", "Living jobs of the topics by state.", "none",
                  (f"sum by (topic, state) (muster_jobs_current{{{T}}})", "{{topic}} {{state}}")),
            graph("Bad ends", "Jobs that ended as dead letters within ten minutes.", "none",
                  (f"muster:bad_ends:increase10m{{{T}}}", "{{topic}}")),
        ]),
    ],
)
