//! Every subject, and the names of durable consumers. No other file writes one.
//!
//! A [`Subject`] can only be built here, from validated names, so it holds no unintended wildcard or dot.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use muster_domain::{Line, Tenant, Topic, WorkerId, line};
use sha2::{Digest, Sha256};

/// The queue of the schedulers.
pub const SCHEDULERS: &str = "muster-scheduler";
/// The queue of the gateways.
pub const GATEWAYS: &str = "muster-gateway";
/// The queue of the workflow engine.
pub const WORKFLOW_ENGINE: &str = "muster-workflow-engine";
/// The queue of the processes that export the audit log.
pub const AUDIT_EXPORTERS: &str = "audit-exporters";
/// The queue of the workers, one consumer per subject.
pub const WORKERS: &str = "workers";

/// The subject of a message, or the one that a consumer listens to.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    text: async_nats::Subject,
    family: &'static str,
}

impl Subject {
    const fn fixed(text: &'static str) -> Subject {
        Subject { text: async_nats::Subject::from_static_validated(text), family: text }
    }

    fn made(text: String, family: &'static str) -> Subject {
        Subject { text: text.into(), family }
    }

    /// The subject's text.
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// The subject's kind without ids and topics, for use as a metric label.
    pub fn family(&self) -> &'static str {
        self.family
    }

    pub(crate) fn raw(&self) -> async_nats::Subject {
        self.text.clone()
    }
}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! fixed {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        $($(#[$doc])* pub const fn $name() -> Subject { Subject::fixed($text) })+
    };
}

fixed! {
    /// Jobs that were accepted, for the schedulers.
    submit = "sys.job.submit";
    /// Outcomes of attempts, for the schedulers.
    result = "sys.job.result";
    /// Cancels that were applied in Redis, for the schedulers.
    cancel = "sys.job.cancel";
    /// Operations on runs that were written to Redis, for the workflow engine.
    run_op = "sys.run.op";
    /// Messages that could not be read, for the gateways.
    dlq = "sys.job.dlq";
    /// Audit entries to export.
    audit_export = "sys.audit.export";
    /// Events of jobs, for watchers; also kept on a capped stream.
    event = "sys.job.event";
    /// Events of runs, for watchers; also kept on a capped stream.
    workflow_event = "sys.workflow.event";
    /// [`event`] and [`workflow_event`] together.
    all_events = "sys.*.event";
    /// A worker asks whether it may start jobs.
    start = "sys.job.start";
    /// A worker asks to keep its leases.
    extend = "sys.job.extend";
    /// A scheduler asks the decider what to do with a job. Plain JSON, so that any program can answer.
    decide = "sys.job.decide";
    /// A worker reports that it is alive.
    heartbeat = "sys.heartbeat";
    /// A worker has started.
    handshake = "sys.handshake";
    /// How well a scheduler reaches its stores, for the other schedulers.
    pulse = "sys.scheduler.pulse";
    /// A loop has work due.
    wake = "sys.loop.wake";
    /// A job has made progress.
    progress = "sys.job.progress";
    /// Settings have changed.
    config_changed = "sys.config.changed";
}

/// Jobs that have ended and belong to a run whose home is in this shard, for the owner of the shard.
pub fn job_done(shard: u8) -> Subject {
    Subject::made(format!("{JOB_DONE}.{shard:x}"), JOB_DONE)
}

/// [`job_done`] of every shard.
pub(crate) fn all_job_done() -> Subject {
    Subject::made(format!("{JOB_DONE}.*"), JOB_DONE)
}

/// The kind of [`job_done`].
const JOB_DONE: &str = "sys.job.done";

/// The subject of a request to one scheduler alone. Characters that a subject cannot hold become `_`: two replicas with
/// names that differ only in those characters both answer, which is harmless.
pub fn at(group: &Subject, instance: &str) -> Subject {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = instance.chars().map(fits).collect();
    Subject::made(format!("{group}.{name}"), group.family)
}

/// Offers of one tenant's topic, or of one of its lines.
pub fn offer(tenant: &Tenant, line: impl Into<Line>) -> Subject {
    Subject::made(format!("job.{tenant}.{}", line.into()), "job")
}

/// Offers of all lines of a tenant's topic, and of the topics beside it: the server has no filter for the lines of one
/// topic alone, because a wildcard matches a whole part of a name.
pub(crate) fn offers_beside(tenant: &Tenant, topic: &Topic) -> Subject {
    let parent = topic.as_str().rsplit_once('.').map_or(String::new(), |(parent, _)| format!("{parent}."));
    Subject::made(format!("job.{tenant}.{parent}*"), "job")
}

/// A filter for this subject that is not its plain name, and matches hardly any other subject. With a plain name as the
/// filter, nats-server 2.9 finds nothing once the file is gone that held the subject's first messages.
pub(crate) fn by_pattern(subject: &Subject) -> Subject {
    let rest = subject.as_str().split_once('.').map_or("", |(_, rest)| rest);
    Subject::made(format!("*.{rest}"), subject.family)
}

/// Offers to one worker, for jobs that require it.
pub fn worker_jobs(worker: &WorkerId) -> Subject {
    Subject::made(format!("worker.{worker}.jobs"), "worker.jobs")
}

/// The subject of offers with a name that the server reported.
pub(crate) fn offers_on(named: &str) -> Subject {
    let family = if named.starts_with("job.") { "job" } else { "worker.jobs" };
    Subject::made(named.to_owned(), family)
}

/// Tenant, topic and pool of a subject of offers; none for any other subject.
pub(crate) fn offered_on(subject: &str) -> Option<(&str, &str, &str)> {
    let (tenant, line) = subject.strip_prefix("job.")?.split_once('.')?;
    let (topic, pool) = line::parts(line);
    Some((tenant, topic, pool))
}

/// Notices to one worker: settled, cancel, drain.
pub fn worker_ctl(worker: &WorkerId) -> Subject {
    Subject::made(format!("worker.{worker}.ctl"), "worker.ctl")
}

/// The name of the durable consumer that a queue shares for a subject. Topics may contain both dots and underscores, so
/// the names for offers contain a hash of the subject: creating a consumer is an upsert, and `a.b` would silently
/// replace `a_b`.
pub fn durable(queue: &str, subject: &Subject) -> String {
    let flat = subject.as_str().replace('.', "_");
    if subject.family == "job" {
        return format!("{}{flat}_{}", durable_prefix(queue), short_hash(subject.as_str().as_bytes()));
    }
    format!("{}{flat}", durable_prefix(queue))
}

/// The prefix of the names of all durable consumers of a queue.
pub(crate) fn durable_prefix(queue: &str) -> String {
    format!("dur_{queue}__")
}

/// Eight hex digits of SHA-256.
pub(crate) fn short_hash(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..4])
}

#[cfg(test)]
mod tests {
    use muster_domain::Topic;

    use super::*;

    fn offers(topic: &str) -> Subject {
        offer(&Tenant::parse("acme").unwrap(), Topic::parse(topic).unwrap())
    }

    #[test]
    fn consumers_of_topics_that_look_alike_have_their_own_names() {
        let (dotted, flat) = (durable(WORKERS, &offers("a.b")), durable(WORKERS, &offers("a_b")));
        assert_ne!(dotted, flat);
        let hash = short_hash(b"job.acme.a.b");
        assert_eq!(dotted, format!("dur_workers__job_acme_a_b_{hash}"));
        assert_eq!(hash.len(), 8);
    }

    #[test]
    fn a_subject_of_offers_tells_whose_they_are() {
        let line = Line::of(&Topic::parse("mail.send").unwrap(), &[("gpu".to_owned(), "a".to_owned())].into());
        let subject = offer(&Tenant::parse("acme").unwrap(), &line);
        assert_eq!(offered_on(subject.as_str()), Some(("acme", "mail.send", line.pool())));
        assert_eq!(offered_on(offers("mail.send").as_str()), Some(("acme", "mail.send", "")));
        assert_eq!(offered_on(submit().as_str()), None);
    }

    #[test]
    fn names_are_those_of_the_contract() {
        assert_eq!(durable(SCHEDULERS, &submit()), "dur_muster-scheduler__sys_job_submit");
        assert_eq!(durable(WORKFLOW_ENGINE, &job_done(10)), "dur_muster-workflow-engine__sys_job_done_a");
        assert_eq!(at(&start(), "scheduler-1.prod").as_str(), "sys.job.start.scheduler-1_prod");
        assert_eq!(offers("mail.send").as_str(), "job.acme.mail.send");
        let worker = WorkerId::http(&Tenant::parse("acme").unwrap(), &WorkerId::parse("w_1").unwrap());
        assert_eq!(worker_jobs(&worker).as_str(), "worker.h~acme~w_1.jobs");
        assert_eq!(worker_ctl(&worker).as_str(), "worker.h~acme~w_1.ctl");
        assert_eq!(durable(WORKERS, &worker_jobs(&worker)), "dur_workers__worker_h~acme~w_1_jobs");
    }

    #[test]
    fn the_longest_names_fit_the_server() {
        let subject = offer(&Tenant::parse(&"t".repeat(64)).unwrap(), Topic::parse(&"x".repeat(128)).unwrap());
        assert!(durable(WORKERS, &subject).len() < 255);
    }
}
