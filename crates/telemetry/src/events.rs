//! Notable faults: one call logs and counts a fault.
//!
//! This module knows the stable name of each fault (`event="lease_lost"` in the log line), its level and its counter. A
//! fault is never counted without a log line or logged without a count, except for faults that can occur by the
//! thousand: they are logged at most once a second, with the number of lines left out. The caller decides what to do
//! about the fault.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};
use std::time::Instant;

use tracing::{debug, error, info, warn};

use crate::metrics::{Counter, count};

/// A fault that can be logged and counted.
pub trait Emit {
    /// Logs the fault under its stable name, and counts it.
    fn emit(self);
}

/// A named task panicked. Its supervisor continues.
pub struct TaskPanicked<'a> {
    /// The task's name.
    pub task: &'a str,
    /// The message of the panic.
    pub detail: &'a str,
}

impl Emit for TaskPanicked<'_> {
    fn emit(self) {
        error!(event = "task_panicked", task = self.task, detail = self.detail, "a task panicked");
        count(Counter::TaskPanics, &[("task", self.task)], 1);
    }
}

/// A lease ended before its holder gave it up. Work under it stops.
pub struct LeaseLost<'a> {
    /// The lock's name, without ids.
    pub lock: &'a str,
    /// Why the lease is considered lost.
    pub detail: &'a str,
}

impl Emit for LeaseLost<'_> {
    fn emit(self) {
        warn!(event = "lease_lost", lock = self.lock, detail = self.detail, "a lease was lost");
        count(Counter::LeaseLost, &[("lock", self.lock)], 1);
    }
}

/// A write under an old fence or version was refused. Normal after a rescue.
pub struct StaleWrite<'a> {
    /// The job event that was refused.
    pub event: &'a str,
    /// The id of the job that the write was about; for the log only.
    pub job: &'a dyn std::fmt::Display,
}

impl Emit for StaleWrite<'_> {
    fn emit(self) {
        debug!(event = "stale_write", job_event = self.event, job = %self.job, "a stale write was refused");
        count(Counter::StaleWrites, &[("event", self.event)], 1);
    }
}

/// A message could not be read and becomes a dead letter.
pub struct Undecodable<'a> {
    /// The subject that the message came from; for the log only.
    pub subject: &'a str,
    /// What was wrong with the message; for the log only.
    pub detail: &'a str,
}

impl Emit for Undecodable<'_> {
    fn emit(self) {
        warn!(event = "undecodable", subject = self.subject, detail = self.detail, "a message could not be decoded");
        count(Counter::DeadLetters, &[("reason", "undecodable")], 1);
    }
}

/// A call to Redis failed, or ran out of its time budget.
pub struct StoreAway<'a> {
    /// The error of the call.
    pub detail: &'a str,
}

impl Emit for StoreAway<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::new();
        count(Counter::StoreFaults, &[], 1);
        if let Some(left_out) = QUIET.speak() {
            warn!(event = "store_away", detail = self.detail, left_out, "Redis does not answer");
        }
    }
}

/// A topic's settings cannot be read; the last known settings stay in effect.
pub struct UnreadableSettings<'a> {
    /// The tenant that owns the topic; for the log only.
    pub tenant: &'a str,
    /// The name of the topic; for the log only.
    pub topic: &'a str,
    /// The reason.
    pub detail: &'a dyn std::fmt::Display,
}

impl Emit for UnreadableSettings<'_> {
    fn emit(self) {
        let UnreadableSettings { tenant, topic, detail } = self;
        warn!(event = "settings_unreadable", tenant, topic, %detail, "a topic's settings cannot be read");
        count(Counter::StoreFaults, &[], 1);
    }
}

/// A job's record cannot be read, and waiting does not repair it. The job is skipped until an operator removes it.
/// Logged once a minute.
pub struct UnreadableRecord<'a> {
    /// The id of the job; for the log only.
    pub job: &'a dyn std::fmt::Display,
    /// What is wrong with the record.
    pub detail: &'a dyn std::fmt::Display,
}

impl Emit for UnreadableRecord<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::a_minute();
        count(Counter::UnreadableRecords, &[], 1);
        if let Some(left_out) = QUIET.speak() {
            let UnreadableRecord { job, detail } = self;
            warn!(event = "record_unreadable", %job, %detail, left_out, "a job's record cannot be read");
        }
    }
}

/// A call to NATS failed or timed out.
pub struct BusAway<'a> {
    /// The error of the call.
    pub detail: &'a str,
}

impl Emit for BusAway<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::new();
        count(Counter::BusFaults, &[], 1);
        if let Some(left_out) = QUIET.speak() {
            warn!(event = "bus_away", detail = self.detail, left_out, "NATS does not answer");
        }
    }
}

/// A publish was not acknowledged; Redis still holds the data of the message.
pub struct PublishFailed<'a> {
    /// The subject's family (`sys.job.submit`, `job`, `worker.jobs`), without ids or topics.
    pub subject: &'static str,
    /// The error of the bus.
    pub detail: &'a str,
}

impl Emit for PublishFailed<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::new();
        count(Counter::BusPublishFailures, &[("subject", self.subject)], 1);
        if let Some(left_out) = QUIET.speak() {
            warn!(event = "publish_failed", subject = self.subject, detail = self.detail, left_out, "not published");
        }
    }
}

/// Messages were published again because the first ones were lost or unanswered.
pub struct Replayed {
    /// The number of messages.
    pub n: u64,
}

impl Emit for Replayed {
    fn emit(self) {
        info!(event = "replayed", n = self.n, "published again");
        count(Counter::Replayed, &[], self.n);
    }
}

/// The decider gave no answer for a job, or an answer that makes no sense. The scheduler asks again.
pub struct Unanswered<'a> {
    /// The id of the job; for the log only.
    pub job: &'a dyn std::fmt::Display,
    /// The error, or the answer that was received.
    pub detail: &'a str,
}

impl Emit for Unanswered<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::new();
        count(Counter::Decisions, &[("outcome", "unanswered")], 1);
        if let Some(left_out) = QUIET.speak() {
            warn!(event = "unanswered", job = %self.job, detail = self.detail, left_out, "no decision about a job");
        }
    }
}

/// Spans were dropped, because the trace collector is away, slow or faulty. Logged once a minute.
pub struct SpansLost<'a> {
    /// The number of spans.
    pub n: u64,
    /// The error of the collector, or the reason why the spans did not reach it.
    pub detail: &'a str,
}

impl Emit for SpansLost<'_> {
    fn emit(self) {
        static QUIET: Quiet = Quiet::a_minute();
        count(Counter::SpansLost, &[], self.n);
        if let Some(left_out) = QUIET.speak() {
            warn!(event = "spans_lost", n = self.n, detail = self.detail, left_out, "traces are not exported");
        }
    }
}

/// Lets a limited number of log lines through per second (or minute), and counts the lines that it held back.
#[derive(Debug)]
pub struct Quiet {
    lines: u64,
    every_ms: u64,
    since_ms: AtomicU64,
    spoken: AtomicU64,
    left_out: AtomicU64,
}

impl Quiet {
    const fn new() -> Quiet {
        Quiet::lines(1)
    }

    /// At most this many lines in any second.
    pub const fn lines(lines: u64) -> Quiet {
        Quiet {
            lines,
            every_ms: 1_000,
            since_ms: AtomicU64::new(0),
            spoken: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// One line in any minute, for faults that are not urgent.
    const fn a_minute() -> Quiet {
        Quiet { every_ms: 60_000, ..Quiet::new() }
    }

    /// `Some(n)`: log the line, and say that `n` lines were left out. `None`: do not log.
    pub fn speak(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        // One interval ahead, so that the very first fault of a process is logged.
        let now =
            self.every_ms + u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX);
        self.speak_at(now)
    }

    fn speak_at(&self, now_ms: u64) -> Option<u64> {
        let since = self.since_ms.load(Ordering::Relaxed);
        let due = now_ms >= since + self.every_ms;
        if due && self.since_ms.compare_exchange(since, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.spoken.store(0, Ordering::Relaxed);
        }
        if self.spoken.fetch_add(1, Ordering::Relaxed) < self.lines {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_faults_is_one_line_a_second() {
        let quiet = Quiet::new();
        assert_eq!(quiet.speak_at(1_000), Some(0));
        assert_eq!(quiet.speak_at(1_001), None);
        assert_eq!(quiet.speak_at(1_999), None);
        assert_eq!(quiet.speak_at(2_000), Some(2));
        assert_eq!(quiet.speak_at(2_500), None);
    }

    #[test]
    fn or_one_line_a_minute() {
        let quiet = Quiet::a_minute();
        assert!(quiet.speak().is_some(), "the first is heard");
        let quiet = Quiet::a_minute();
        let said: Vec<_> = [60_000, 61_000, 119_999, 120_000].map(|ms| quiet.speak_at(ms)).into();
        assert_eq!(said, [Some(0), None, None, Some(2)]);
    }

    #[test]
    fn or_as_many_lines_as_were_asked_for() {
        let quiet = Quiet::lines(3);
        let said: Vec<_> = (0..5).map(|ms| quiet.speak_at(1_000 + ms)).collect();
        assert_eq!(said, [Some(0), Some(0), Some(0), None, None]);
        assert_eq!([quiet.speak_at(2_000), quiet.speak_at(2_001)], [Some(2), Some(0)]);
    }
}
