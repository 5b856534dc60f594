//! What a handler knows about its attempt, and how it communicates: it sends progress and receives
//! cancellation. Only the latest progress is kept, and the worker's loop picks it up, so a handler
//! may report as often as it likes.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use muster_domain::{JobId, Labels, Tenant, Time, Topic, TraceParent};
use muster_wire::v1;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::Attempt;

/// The most bytes of a progress report's data; larger data is left out.
const MAX_PROGRESS_DATA: usize = 16 * 1024;
/// The most bytes of a progress report's message.
const MAX_PROGRESS_MESSAGE: usize = 1000;

/// Why a handler was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The job was cancelled.
    Cancelled,
    /// The attempt or the whole job ran out of time.
    TimedOut,
    /// Another attempt has the job now, or the job is gone.
    Lost,
    /// The worker drains and its time for that is over: the attempt is released.
    Draining,
}

/// One attempt at one job, as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    attempt: Attempt,
    tenant: Tenant,
    topic: Topic,
    labels: Labels,
    number: u32,
    max_attempts: u32,
    deadline: Option<Time>,
    timeout: Option<Duration>,
    trace: Option<TraceParent>,
    slot: Option<v1::Slot>,
    /// What the offer carries for the result.
    carried: Bytes,
    token: CancellationToken,
    reason: OnceLock<StopReason>,
    progress: Mutex<Option<v1::Progress>>,
    news: UnboundedSender<Attempt>,
}

impl Context {
    /// The context of an attempt that has just begun. `None` if the names in the offer are not
    /// valid.
    pub(super) fn new(
        attempt: Attempt,
        offer: &mut v1::Offer,
        answer: &v1::StartAnswer,
        news: UnboundedSender<Attempt>,
    ) -> Option<Context> {
        let max_attempts = if answer.max_attempts > 0 { answer.max_attempts } else { offer.max_attempts };
        let inner = Inner {
            attempt,
            tenant: Tenant::parse(&offer.tenant).ok()?,
            topic: Topic::parse(&offer.topic).ok()?,
            labels: std::mem::take(&mut offer.labels),
            number: answer.attempt,
            max_attempts,
            deadline: Time(offer.deadline).some(),
            timeout: (offer.timeout_ms > 0).then(|| Duration::from_millis(offer.timeout_ms.into())),
            trace: TraceParent::parse(&offer.traceparent),
            slot: offer.slot.take(),
            carried: std::mem::take(&mut offer.carried),
            token: CancellationToken::new(),
            reason: OnceLock::new(),
            progress: Mutex::new(None),
            news,
        };
        Some(Context { inner: Arc::new(inner) })
    }

    /// The concurrency slot that the attempt runs under.
    pub(super) fn concurrency_slot(&self) -> Option<v1::Slot> {
        self.inner.slot.clone()
    }

    /// What the offer carries for the result, as it came.
    pub(super) fn carried(&self) -> Bytes {
        self.inner.carried.clone()
    }

    /// The job's trace, to be sent back with the result; empty unless the trace is sampled.
    pub(super) fn sampled_trace(&self) -> String {
        self.inner.trace.filter(|trace| trace.is_sampled()).map(|trace| trace.to_string()).unwrap_or_default()
    }

    /// The job's id.
    pub fn job_id(&self) -> JobId {
        self.inner.attempt.job
    }

    /// The job's topic.
    pub fn topic(&self) -> &Topic {
        &self.inner.topic
    }

    /// The tenant that owns the job.
    pub fn tenant(&self) -> &Tenant {
        &self.inner.tenant
    }

    /// The labels that the submitter gave the job.
    pub fn labels(&self) -> &Labels {
        &self.inner.labels
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.inner.number
    }

    /// How many attempts may be started.
    pub fn max_attempts(&self) -> u32 {
        self.inner.max_attempts
    }

    /// The attempt's fence. It grows with every attempt: pass it to every system that you write to,
    /// and let that system refuse a fence lower than the highest it has seen.
    pub fn fence(&self) -> u64 {
        self.inner.attempt.fence
    }

    /// When the whole job must have ended, in Redis time.
    pub fn deadline(&self) -> Option<Time> {
        self.inner.deadline
    }

    /// How long this attempt may take.
    pub fn timeout(&self) -> Option<Duration> {
        self.inner.timeout
    }

    /// The trace that the job belongs to, to be passed on.
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.inner.trace
    }

    /// Reports progress. Sent within 200 ms; the latest report wins. `percent` is cut to 0-100, the
    /// message to 1,000 bytes; data of more than 16 KiB is left out.
    pub fn progress<'a>(
        &self,
        percent: impl Into<Option<f64>>,
        message: impl Into<Option<&'a str>>,
        data: Option<serde_json::Value>,
    ) {
        let message = message.into().unwrap_or_default();
        let end = (0..=MAX_PROGRESS_MESSAGE.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
        let message = &message[..end.unwrap_or_default()];
        let data = data.map(|data| data.to_string()).unwrap_or_default();
        let data = if data.len() <= MAX_PROGRESS_DATA { data } else { String::new() };
        let percent = percent.into().filter(|p| p.is_finite()).map(|p| p.clamp(0.0, 100.0));
        let report = v1::Progress { percent, message: message.to_owned(), data };
        if self.slot().replace(report).is_none() {
            // Notify the loop once, however often the handler reports before the loop picks it up.
            let _ = self.inner.news.send(self.inner.attempt);
        }
    }

    /// Whether the handler should stop: its result is no longer wanted.
    pub fn is_cancelled(&self) -> bool {
        self.inner.token.is_cancelled()
    }

    /// Resolves when the handler should stop. A handler that has not stopped some seconds later is
    /// aborted.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.inner.token.cancelled()
    }

    /// A token to pass on, which is cancelled with the attempt.
    pub fn cancellation(&self) -> CancellationToken {
        self.inner.token.child_token()
    }

    /// Why the handler should stop; `None` while it should continue.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.inner.reason.get().copied()
    }

    pub(super) fn stop(&self, reason: StopReason) {
        let _ = self.inner.reason.set(reason);
        self.inner.token.cancel();
    }

    pub(super) fn take_progress(&self) -> Option<v1::Progress> {
        self.slot().take()
    }

    /// Puts back a report that could not be sent, unless there is a newer one.
    pub(super) fn restore_progress(&self, report: v1::Progress) {
        let mut slot = self.slot();
        if slot.is_none() {
            *slot = Some(report);
            let _ = self.inner.news.send(self.inner.attempt);
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<v1::Progress>> {
        self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("job", &self.inner.attempt.job)
            .field("topic", &self.inner.topic)
            .field("attempt", &self.inner.number)
            .finish_non_exhaustive()
    }
}
