//! The list of metrics. A new metric is one row here; contract, dashboards and alerts may name only
//! metrics of this list.

/// Which replicas report a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// Every replica of every service reports its own part.
    Every,
    /// Every gateway reports its own part.
    Gateway,
    /// Every scheduler reports its own part.
    Scheduler,
    /// Every replica of the workflow service reports its own part.
    Workflow,
    /// The scheduler that leads the loop `snapshot` reports for the whole fleet.
    Snapshot,
}

/// Turns rows of (variant, name, labels, teller, help) into an enum that knows its own names.
macro_rules! catalogue {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident = $name:literal [$($label:literal),*] $teller:ident $help:literal;)+ }) => {
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

            /// A sentence that describes the metric for people.
            pub const fn help(self) -> &'static str {
                match self { $($kind::$variant => $help,)+ }
            }

            /// The replicas that report the metric.
            pub const fn teller(self) -> Teller {
                match self { $($kind::$variant => Teller::$teller,)+ }
            }

            /// The label names, in the order callers give them.
            pub const fn labels(self) -> &'static [&'static str] {
                match self { $($kind::$variant => &[$($label),*],)+ }
            }
        }
    };
}

catalogue! {
    /// Metrics that only grow.
    Counter {
        Jobs = "muster_jobs_total" ["topic", "state"] Every "Jobs that ended, by final state.";
        JobAttempts = "muster_job_attempts_total" ["topic", "outcome"] Scheduler "Attempts that ended, by outcome.";
        RateLimitHits = "muster_rate_limit_hits_total" [] Gateway "Requests refused by a rate limit.";
        LeaseLost = "muster_lease_lost_total" ["lock"] Every "Leases that their holder lost before it released them.";
        StoodDown = "muster_stood_down_total" ["reason"] Scheduler "Times that a scheduler stopped taking work because a store answered it worse than other schedulers, by reason.";
        StaleWrites = "muster_stale_writes_total" ["event"] Scheduler "Writes refused because their fence or version was old.";
        Replayed = "muster_replayed_total" [] Every "Messages published again because they were lost or unanswered.";
        Reconciled = "muster_reconciled_total" ["action"] Scheduler "Repairs of jobs, by action.";
        LoopTicks = "muster_loop_ticks_total" ["loop", "outcome"] Every "Passes of a periodic loop, by outcome.";
        TaskPanics = "muster_task_panics_total" ["task"] Every "Panics caught in a named task.";
        Decisions = "muster_decisions_total" ["outcome"] Scheduler "Answers of deciders about jobs, and questions without an answer, by outcome.";
        DeadLetters = "muster_dead_letters_total" ["reason"] Every "Messages that could not be read and became dead letters.";
        BusPublishFailures = "muster_bus_publish_failures_total" ["subject"] Every "Publishes that the bus did not acknowledge.";
        BusFaults = "muster_bus_faults_total" [] Every "Calls to NATS that failed or timed out.";
        StoreFaults = "muster_store_faults_total" [] Every "Calls to Redis that failed or timed out.";
        UnreadableRecords = "muster_unreadable_records_total" [] Every "Times that a job's record could not be read.";
        Runs = "muster_runs_total" ["workflow", "state"] Every "Runs of workflows that ended, by final state; the replica that saved the end reports it.";
        RunSteps = "muster_run_steps_total" ["state"] Every "Steps of runs that ended, by state. Items of a for-each count only if they failed.";
        RunSaveConflicts = "muster_run_save_conflicts_total" [] Every "Saves of a run that found that another replica had saved it; the run is read again.";
        SpansLost = "muster_spans_lost_total" [] Every "Spans that could not be exported to the trace collector.";
    }
}

catalogue! {
    /// Metrics that go up and down.
    Gauge {
        Leader = "muster_leader" ["loop"] Every "1 while this replica leads the loop, otherwise 0.";
        ReplicaFit = "muster_replica_fit" [] Scheduler "1 while this scheduler takes work, 0 while it takes none because of a slow or silent store.";
        BusConsumerPending = "muster_bus_consumer_pending" ["consumer"] Scheduler "Messages that a durable consumer has not delivered yet.";
        SubmitLag = "muster_submit_lag_seconds" [] Gateway "Age of the oldest submit that no scheduler has handled, as this gateway last measured it.";
        RedisConnections = "muster_redis_connections" ["state"] Every "Connections to Redis nodes, by state.";
        EventStreams = "muster_event_streams" [] Gateway "Clients that watch events on this gateway.";
        Workers = "muster_workers" ["topic"] Snapshot "Live workers that take jobs of the topic; reported by the leader of the loop `snapshot`.";
        JobsCurrent = "muster_jobs_current" ["topic", "state"] Snapshot "Jobs that have not ended, by state; reported by the leader of the loop `snapshot`.";
        QueueDepth = "muster_queue_depth" ["topic"] Snapshot "Jobs that wait to be started: pending, queued or offered; reported by the leader of the loop `snapshot`.";
        QueueRunnable = "muster_queue_runnable" ["topic"] Snapshot "Waiting jobs that a free worker could start; reported by the leader of the loop `snapshot`.";
        QueueOldestAge = "muster_queue_oldest_age_seconds" ["topic"] Snapshot "How long the oldest waiting job has waited; reported by the leader of the loop `snapshot`.";
        OldestRunningAge = "muster_oldest_running_age_seconds" ["topic"] Snapshot "How long the oldest running attempt has been running; reported by the leader of the loop `snapshot`.";
        OverdueJobs = "muster_overdue_jobs" [] Snapshot "Jobs whose check is more than ten seconds late; reported by the leader of the loop `snapshot`.";
        OverdueRuns = "muster_overdue_runs" [] Snapshot "Runs of workflows whose check is more than ten seconds late; reported by the leader of the loop `snapshot`.";
        ConsistencyGap = "muster_consistency_gap" [] Snapshot "Accepted jobs without an end and without a next check, by the last complete scrub; reported by the leader of the loop `snapshot`.";
        CensusAge = "muster_census_age_seconds" [] Snapshot "Age of the count of jobs that have not ended; reported by the leader of the loop `snapshot`.";
        Replicas = "muster_replicas" ["service"] Snapshot "Live replicas, by service, as they announce themselves.";
        DeadLettersCurrent = "muster_dead_letters_current" [] Snapshot "Dead letters that exist now: jobs and unreadable messages.";
        BackupLastSuccess = "muster_backup_last_success_timestamp_seconds" [] Snapshot "When `muster backup create` last succeeded, as Unix time; 0 if it never did.";
        ApiKeysExpiring = "muster_api_keys_expiring" ["within"] Snapshot "Valid API keys that expire within this time.";
        AuditChainBroken = "muster_audit_chain_broken" [] Snapshot "1 if the newest 500 entries of the audit log do not form a chain, otherwise 0.";
        RedisAofEnabled = "muster_redis_aof_enabled" [] Snapshot "1 if every Redis primary keeps an append-only log, otherwise 0.";
        RedisEvicts = "muster_redis_evicts" [] Snapshot "1 if a Redis primary may evict keys when its memory is full, otherwise 0.";
        NatsStreamBytes = "muster_nats_stream_bytes" ["stream"] Snapshot "Bytes in one copy of a stream.";
        NatsStreamMessages = "muster_nats_stream_messages" ["stream"] Snapshot "Messages in a stream.";
        NatsStreamLimit = "muster_nats_stream_limit_bytes" ["stream"] Snapshot "Bytes at which a stream drops its oldest messages; 0 without a limit.";
        NatsStreamConsumers = "muster_nats_stream_consumers" ["stream"] Snapshot "Consumers on a stream.";
        NatsStreamLagging = "muster_nats_stream_replicas_lagging" ["stream"] Snapshot "Copies of a stream that lag or are offline.";
        NatsStorageUsed = "muster_nats_storage_used_bytes" [] Snapshot "Bytes on disk that the streams of the NATS account use, over all copies.";
        NatsStorageLimit = "muster_nats_storage_limit_bytes" [] Snapshot "Bytes on disk that the NATS account may use; 0 if it has no limit of its own.";
        RunShards = "muster_run_shards" [] Workflow "Shards of runs that this replica owns; all replicas together own 16.";
        BuildInfo = "muster_build_info" ["version"] Every "Always 1; the label is the version of this replica.";
    }
}

catalogue! {
    /// Durations, in seconds.
    Histogram {
        DispatchLatency = "muster_dispatch_latency_seconds" [] Scheduler "From a job's acceptance, or its requested start time, to its first dispatch.";
        JobWait = "muster_job_wait_seconds" ["topic"] Scheduler "From the time when a job can run to its start.";
        JobDuration = "muster_job_duration_seconds" ["topic"] Every "From the start of the last attempt to the job's end.";
        RunDuration = "muster_run_duration_seconds" ["workflow"] Every "From the start of a run to its end.";
        RunTimerLag = "muster_run_timer_lag_seconds" [] Workflow "How late the first timer of a run was that had become due.";
        HttpRequestDuration = "muster_http_request_duration_seconds" ["route", "status"] Gateway "HTTP requests, from the request head to the answer.";
        RedisCommand = "muster_redis_command_seconds" [] Every "Calls to Redis, with retries; a pipeline counts as one call.";
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
            Histogram::HttpRequestDuration | Histogram::DispatchLatency | Histogram::RunTimerLag => REQUEST,
            Histogram::JobWait | Histogram::JobDuration | Histogram::RunDuration => WORK,
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
