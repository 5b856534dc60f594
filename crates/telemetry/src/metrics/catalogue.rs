//! The list of metrics. A new metric is one row here; contract, dashboards and alerts may
//! name only what stands in it.

/// Turns rows of (variant, name, labels, help) into an enum that knows its own names.
macro_rules! catalogue {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident = $name:literal [$($label:literal),*] $help:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind { $(#[doc = $help] $variant,)+ }

        impl $kind {
            /// Every metric of this kind.
            pub const ALL: &'static [$kind] = &[$($kind::$variant),+];

            /// The name that a scrape shows.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name,)+ }
            }

            /// One sentence for people.
            pub const fn help(self) -> &'static str {
                match self { $($kind::$variant => $help,)+ }
            }

            /// The label names, in the order callers give them.
            pub const fn labels(self) -> &'static [&'static str] {
                match self { $($kind::$variant => &[$($label),*],)+ }
            }
        }
    };
}

catalogue! {
    /// What only grows.
    Counter {
        Jobs = "muster_jobs_total" ["topic", "state"] "Jobs that ended, by how.";
        JobAttempts = "muster_job_attempts_total" ["topic", "outcome"] "Attempts that ended, by outcome.";
        RateLimitHits = "muster_rate_limit_hits_total" [] "Requests refused by a rate limit.";
        LeaseLost = "muster_lease_lost_total" ["lock"] "Leases that their holder lost before it released them.";
        StaleWrites = "muster_stale_writes_total" ["event"] "Writes refused because their fence or version was old.";
        Replayed = "muster_replayed_total" [] "Messages published again because they were lost or unanswered.";
        Reconciled = "muster_reconciled_total" ["action"] "Jobs that the reconciler helped along, by what it did.";
        LoopTicks = "muster_loop_ticks_total" ["loop", "outcome"] "Passes of a periodic loop, by outcome.";
        TaskPanics = "muster_task_panics_total" ["task"] "Panics caught in a named task.";
        Decisions = "muster_decisions_total" ["outcome"] "Answers from outside about jobs that somebody there has a say in, and questions without one.";
        DeadLetters = "muster_dead_letters_total" ["reason"] "Messages that nobody could read, kept as dead letters.";
        BusPublishFailures = "muster_bus_publish_failures_total" ["subject"] "Publishes that the bus did not acknowledge.";
        BusFaults = "muster_bus_faults_total" [] "Calls to NATS that failed or timed out.";
        StoreFaults = "muster_store_faults_total" [] "Calls to Redis that failed or ran out of time.";
        UnreadableRecords = "muster_unreadable_records_total" [] "Times that a job's record was met that cannot be read.";
        SpansLost = "muster_spans_lost_total" [] "Spans of traces that no collector took.";
    }
}

catalogue! {
    /// What goes up and down.
    Gauge {
        Leader = "muster_leader" ["loop"] "1 while this replica leads the loop, otherwise 0.";
        BusConsumerPending = "muster_bus_consumer_pending" ["consumer"] "Messages that a durable consumer has still to deliver.";
        SubmitLag = "muster_submit_lag_seconds" [] "How old the oldest submit is that no scheduler has handled, as a gateway last heard.";
        RedisConnections = "muster_redis_connections" ["state"] "Connections to Redis nodes, by state.";
        EventStreams = "muster_event_streams" [] "Clients that watch events on this gateway.";
        Workers = "muster_workers" ["topic"] "Live workers that take the topic; only the leader of the snapshot counts them.";
        JobsCurrent = "muster_jobs_current" ["topic", "state"] "Jobs that live, by state; only the leader of the snapshot counts them.";
        QueueDepth = "muster_queue_depth" ["topic"] "Jobs that wait to be started: pending, queued or offered; told by the leader of the snapshot.";
        QueueRunnable = "muster_queue_runnable" ["topic"] "Those of them that a free worker could start; told by the leader of the snapshot.";
        QueueOldestAge = "muster_queue_oldest_age_seconds" ["topic"] "How long the oldest of them has waited; told by the leader of the snapshot.";
        OldestRunningAge = "muster_oldest_running_age_seconds" ["topic"] "How long the oldest running attempt has been running; told by the leader of the snapshot.";
        OverdueJobs = "muster_overdue_jobs" [] "Jobs whose look is more than ten seconds late; told by the leader of the snapshot.";
        ConsistencyGap = "muster_consistency_gap" [] "Accepted jobs that the last complete scrub found neither ended nor looked after; told by the leader of the snapshot.";
        CensusAge = "muster_census_age_seconds" [] "How old the count of living jobs is; told by the leader of the snapshot.";
        BuildInfo = "muster_build_info" ["version"] "Always 1; the label says which version runs.";
    }
}

catalogue! {
    /// How long things took, in seconds.
    Histogram {
        DispatchLatency = "muster_dispatch_latency_seconds" [] "From a job's acceptance, or the time it asked for, to its first dispatch.";
        JobWait = "muster_job_wait_seconds" ["topic"] "From runnable to started.";
        JobDuration = "muster_job_duration_seconds" ["topic"] "From the start of the last attempt to the job's end.";
        HttpRequestDuration = "muster_http_request_duration_seconds" ["route", "status"] "HTTP requests, from head to answer.";
        RedisCommand = "muster_redis_command_seconds" [] "Calls to Redis, pipelines as one, retries included.";
    }
}

const QUICK: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
const REQUEST: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const WORK: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

impl Histogram {
    /// Upper bounds of the buckets, in seconds.
    pub const fn buckets(self) -> &'static [f64] {
        match self {
            Histogram::RedisCommand => QUICK,
            Histogram::HttpRequestDuration | Histogram::DispatchLatency => REQUEST,
            Histogram::JobWait | Histogram::JobDuration => WORK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_contract() {
        for c in Counter::ALL {
            assert!(c.name().starts_with("muster_") && c.name().ends_with("_total"), "{}", c.name());
        }
        for h in Histogram::ALL {
            assert!(h.name().starts_with("muster_") && h.name().ends_with("_seconds"), "{}", h.name());
            assert!(h.buckets().is_sorted(), "{}", h.name());
        }
        for g in Gauge::ALL {
            assert!(g.name().starts_with("muster_") && !g.name().ends_with("_total"), "{}", g.name());
        }
    }
}
