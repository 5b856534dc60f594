//! The three streams and the durable consumers on them.
//!
//! The first process that needs a stream or consumer creates it, and any process that finds one missing creates it
//! again. Creation is idempotent and safe from any number of replicas. The configuration on the server is compared with
//! the one asked for, and a difference is an error that names the field. Other modules decide what the messages mean.

use std::{sync::atomic::Ordering, time::Duration};

use async_nats::{HeaderMap, header::NATS_EXPECTED_STREAM};
use bytes::Bytes;
use muster_domain::{Line, Tenant, WorkerId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    Bus, BusError, Subject,
    error::{NO_CONSUMER, NO_STREAM, OVERLAP},
    jetstream::{compare, judge, nanos},
    subjects,
};

/// How long the server remembers a Msg-Id.
const DUPLICATES: Duration = Duration::from_secs(120);
/// How long a server may take to remove a deleted stream's files.
const REMOVAL: Duration = Duration::from_millis(500);
/// The pause between two requests to a stream that is being set up.
const SET_UP_PAUSE: Duration = Duration::from_millis(10);

/// One of Muster's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Work for the services: kept ten minutes from publish, handled or not.
    Sys,
    /// Offers: each is removed when it is started.
    Jobs,
    /// Events for watchers that resume: kept for an hour or up to a gibibyte, whichever comes first.
    Events,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 3] = [Stream::Sys, Stream::Jobs, Stream::Events];

    /// The stream's name on the server.
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Sys => "MUSTER_SYS",
            Stream::Jobs => "MUSTER_JOBS",
            Stream::Events => "MUSTER_EVENTS",
        }
    }

    /// The stream that captures this subject.
    pub(crate) fn of(subject: &Subject) -> Stream {
        match subject.family() {
            "job" | "worker.jobs" => Stream::Jobs,
            family if family == subjects::event().family() || family == subjects::workflow_event().family() => {
                Stream::Events
            }
            _ => Stream::Sys,
        }
    }

    /// A subject of this stream to which only the stream itself listens, or subscriptions, which pass over an empty
    /// message.
    fn quiet(self) -> Subject {
        match self {
            Stream::Sys => subjects::audit_export(),
            Stream::Jobs => subjects::worker_jobs(&WorkerId::trusted("nobody")),
            Stream::Events => subjects::workflow_event(),
        }
    }

    /// The configuration that Muster asks the server for, without the number of copies.
    pub(crate) fn config(self) -> Value {
        let (subjects, retention, max_age, max_bytes) = match self {
            Stream::Sys => {
                let listed = [
                    subjects::submit(),
                    subjects::result(),
                    subjects::cancel(),
                    subjects::all_job_done(),
                    subjects::run_op(),
                    subjects::dlq(),
                    subjects::audit_export(),
                ];
                let listed: Vec<String> = listed.iter().map(Subject::to_string).collect();
                (json!(listed), "limits", Duration::from_secs(600), -1)
            }
            Stream::Jobs => (json!(["job.>", "worker.*.jobs"]), "workqueue", Duration::ZERO, -1),
            Stream::Events => {
                let listed = [subjects::event().to_string(), subjects::workflow_event().to_string()];
                (json!(listed), "limits", Duration::from_secs(3_600), 1_i64 << 30)
            }
        };
        json!({
            "name": self.name(),
            "subjects": subjects,
            "retention": retention,
            "storage": "file",
            "discard": "old",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": max_bytes,
            "max_age": nanos(max_age),
            "duplicate_window": nanos(DUPLICATES),
        })
    }
}

/// A durable consumer that all replicas of a group share.
#[derive(Clone, Debug)]
pub struct ConsumerSpec {
    /// The stream that it consumes.
    pub stream: Stream,
    /// The durable name of the consumer.
    pub name: String,
    /// The one subject that the consumer listens to. Never several: an old server would ignore them and deliver
    /// everything.
    pub filter: Subject,
    /// A delivery that is not acked within this time is redelivered.
    pub ack_wait: Duration,
    /// The most unacked deliveries at one time, over all replicas.
    pub max_ack_pending: i64,
    /// The most open pull requests at one time, over all replicas.
    pub max_waiting: i64,
    /// `Some(n)`: a standing request keeps up to `n` messages ready in this process, for schedulers. `None`: a fetch
    /// takes what it asks for and no more, for workers.
    pub prefetch: Option<usize>,
    /// The server removes the consumer when no process has asked for messages for this long; the next process creates
    /// it again. The messages on its subject stay there. `None`: never removed.
    pub idle_for: Option<Duration>,
}

/// Messages that a dead or frozen process had pulled reach another process after this time. A process that holds a
/// delivery for longer than [`PROGRESS`] reports that it is still working.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// The same for messages about runs.
const RUN_ACK_WAIT: Duration = Duration::from_secs(5);
/// How old a delivery may get before its holder calls [`crate::Receipt::in_progress`], and how often the holder repeats
/// that.
pub const PROGRESS: Duration = Duration::from_millis(500);

/// Topics and workers come and go, and each has a consumer: the server removes it an hour after the last pull.
const IDLE: Duration = Duration::from_secs(3_600);

impl ConsumerSpec {
    /// The consumer of one of the schedulers' subjects on [`Stream::Sys`].
    pub fn scheduler(subject: Subject) -> ConsumerSpec {
        ConsumerSpec::sys(subjects::SCHEDULERS, subject)
    }

    /// The consumer of one of the gateways' subjects on [`Stream::Sys`].
    pub fn gateway(subject: Subject) -> ConsumerSpec {
        ConsumerSpec::sys(subjects::GATEWAYS, subject)
    }

    /// The consumer of the ended jobs of runs whose homes are in this shard: only the shard's owner pulls from it. A
    /// successor gets what a dead owner had pulled after `ack_wait`, which is longer than that of other consumers: an
    /// owner acks after it has saved the runs.
    pub fn job_done(shard: u8) -> ConsumerSpec {
        let spec = ConsumerSpec::sys(subjects::WORKFLOW_ENGINE, subjects::job_done(shard));
        ConsumerSpec { ack_wait: RUN_ACK_WAIT, ..spec }
    }

    /// The consumer of operations on runs, shared by all replicas of the workflow engine.
    pub fn run_ops() -> ConsumerSpec {
        let spec = ConsumerSpec::sys(subjects::WORKFLOW_ENGINE, subjects::run_op());
        ConsumerSpec { ack_wait: RUN_ACK_WAIT, ..spec }
    }

    /// The consumer of the audit log's entries, shared by all exporters.
    pub fn audit_exporters() -> ConsumerSpec {
        ConsumerSpec::sys(subjects::AUDIT_EXPORTERS, subjects::audit_export())
    }

    /// The consumer of the offers of one tenant's topic, or of one of its lines, shared by all its workers.
    pub fn offers(tenant: &Tenant, line: impl Into<Line>) -> ConsumerSpec {
        ConsumerSpec::jobs(subjects::offer(tenant, line))
    }

    /// What all consumers of offers have in common, whatever their subject.
    pub(crate) fn any_offers() -> ConsumerSpec {
        ConsumerSpec::jobs(Stream::Jobs.quiet())
    }

    fn sys(queue: &str, filter: Subject) -> ConsumerSpec {
        ConsumerSpec {
            stream: Stream::Sys,
            name: subjects::durable(queue, &filter),
            filter,
            ack_wait: ACK_WAIT,
            max_ack_pending: 4_096,
            max_waiting: 512,
            prefetch: Some(64),
            // Its ack floor is used to judge silence, so it must not be removed.
            idle_for: None,
        }
    }

    fn jobs(filter: Subject) -> ConsumerSpec {
        ConsumerSpec {
            stream: Stream::Jobs,
            name: subjects::durable(subjects::WORKERS, &filter),
            filter,
            ack_wait: ACK_WAIT,
            // The defaults stall a thousand workers.
            max_ack_pending: 20_000,
            max_waiting: 8_192,
            prefetch: None,
            idle_for: Some(IDLE),
        }
    }

    /// The consumer's place on the server: its stream and its name.
    pub(crate) fn place(&self) -> String {
        format!("{}.{}", self.stream.name(), self.name)
    }

    pub(crate) fn config(&self) -> Value {
        let mut config = json!({
            "durable_name": self.name,
            "filter_subject": self.filter.as_str(),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": nanos(self.ack_wait),
            "max_deliver": -1,
            "max_ack_pending": self.max_ack_pending,
            "max_waiting": self.max_waiting,
        });
        if let Some(idle_for) = self.idle_for {
            config["inactive_threshold"] = nanos(idle_for).into();
        }
        config
    }
}

/// A stream or consumer as the server describes it.
#[derive(Deserialize)]
struct Described {
    config: Value,
}

impl Bus {
    /// Creates the streams that are missing, and checks all of them. Idempotent; any number of replicas may do it at
    /// once. Tries every stream and returns the first error.
    pub async fn ensure_streams(&self) -> Result<(), BusError> {
        let [sys, jobs, events] = Stream::ALL.map(|stream| self.ensure_stream(stream));
        let (sys, jobs, events) = tokio::join!(sys, jobs, events);
        let all = sys.and(jobs).and(events);
        self.inner.had_streams.fetch_or(all.is_ok(), Ordering::Relaxed);
        all
    }

    async fn ensure_stream(&self, stream: Stream) -> Result<(), BusError> {
        let (name, asked) = (stream.name(), stream.config());
        let wanted_replicas = self.inner.settings.replicas.max(1) as u64;
        let with_replicas = |n: u64| {
            let mut config = asked.clone();
            config["num_replicas"] = n.into();
            config
        };
        let found = match self.api::<Described>(&format!("STREAM.INFO.{name}"), &Value::Null).await {
            Err(fault) if fault.is_missing(NO_STREAM) => {
                if self.inner.had_streams.load(Ordering::Relaxed) {
                    // nats-server 2.9 forgets a deleted stream first and then removes its folder: a stream recreated in
                    // between loses its files, stores little and delivers nothing.
                    tokio::time::sleep(REMOVAL).await;
                }
                let config = with_replicas(wanted_replicas);
                match self.api::<Described>(&format!("STREAM.CREATE.{name}"), &config).await {
                    Ok(made) => {
                        info!(stream = name, "stream created");
                        return compare(&format!("stream {name}"), &config, &made.config);
                    }
                    // If two processes create the stream at the same moment, nats-server 2.9 reports to one of them
                    // that the stream overlaps: with itself.
                    Err(refused) if refused.is_refusal(OVERLAP) => {
                        self.api(&format!("STREAM.INFO.{name}"), &Value::Null).await.map_err(|_| refused)?
                    }
                    Err(fault) => return Err(fault),
                }
            }
            found => found?,
        };
        // Copies are only ever added: a replica that was started with a lower number must not reduce the safety that
        // the other replicas asked for.
        let replicas = found.config["num_replicas"].as_u64().unwrap_or(1).max(wanted_replicas);
        let config = with_replicas(replicas);
        if compare(name, &config, &found.config).is_ok() {
            return self.repair_unreadable(stream).await;
        }
        warn!(stream = name, "the stream's configuration was changed; correcting it");
        let updated: Described = self.api(&format!("STREAM.UPDATE.{name}"), &config).await.map_err(|refused| {
            // A field that cannot be changed in place needs an operator; name the field.
            compare(&format!("stream {name}"), &config, &found.config).err().unwrap_or(refused)
        })?;
        compare(&format!("stream {name}"), &config, &updated.config)
    }

    /// [`Bus::ensure_streams`] for a caller that found a stream missing: if many callers find it at once, one recreates
    /// it, and the others use its result.
    pub(crate) async fn heal(&self) -> Result<(), BusError> {
        let asked_at = Instant::now();
        let mut healed = self.inner.healed.lock().await;
        if let Some((_, outcome)) = healed.as_ref().filter(|(at, _)| *at >= asked_at) {
            return outcome.clone();
        }
        let outcome = self.ensure_streams().await;
        *healed = Some((Instant::now(), outcome.clone()));
        outcome
    }

    /// Creates the consumer if it is missing, and its stream too, and checks the consumer. Idempotent.
    pub(crate) async fn ensure_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError> {
        let (stream, name, config) = (spec.stream.name(), &spec.name, spec.config());
        let what = format!("consumer {name}");
        match self.api::<Described>(&format!("CONSUMER.INFO.{stream}.{name}"), &Value::Null).await {
            Ok(found) if compare(&what, &config, &found.config).is_ok() => return Ok(()),
            Ok(found) if found.config["filter_subject"] != config["filter_subject"] => {
                // A consumer of another subject has this name. An upsert would replace it.
                return compare(&what, &config, &found.config);
            }
            Ok(_) => warn!(consumer = name, "the consumer's configuration was changed; correcting it"),
            Err(fault) if fault.is_missing(NO_STREAM) => self.heal().await?,
            Err(fault) if fault.is_missing(NO_CONSUMER) => {}
            Err(fault) => return Err(fault),
        }
        self.set_up(spec.stream).await?;
        let verb = format!("CONSUMER.DURABLE.CREATE.{stream}.{name}");
        let made: Described = self.api(&verb, &json!({ "stream_name": stream, "config": config })).await?;
        info!(consumer = name, "consumer created");
        compare(&what, &config, &made.config)
    }

    /// Waits until the stream is complete. While nats-server 2.9 is still creating the stream for another process, it
    /// already reports that the stream exists, and a consumer created on it then never delivers. A message that expects
    /// another stream is refused, not stored; the refusal is the proof.
    pub(crate) async fn set_up(&self, stream: Stream) -> Result<(), BusError> {
        let (subject, wait) = (stream.quiet(), self.inner.settings.request_timeout);
        let deadline = Instant::now() + wait;
        loop {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_EXPECTED_STREAM, "none");
            let answer = self.ask(subject.raw(), Some(headers), Bytes::new(), wait).await;
            match answer.and_then(|answer| judge::<Value>(&answer.payload)) {
                Ok(_) | Err(BusError::Refused { .. }) => return Ok(()),
                Err(BusError::NoResponders { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(SET_UP_PAUSE).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }
}
