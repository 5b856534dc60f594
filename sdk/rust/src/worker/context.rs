//! What a handler knows about the attempt it runs, and how it speaks back: progress out,
//! cancellation in. Progress is kept as the latest value and picked up by the worker's loop, so a
//! handler may report as often as it likes.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use muster_domain::{JobId, Labels, Tenant, Time, Topic, TraceParent};
use muster_wire::v1;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::Attempt;

/// Most bytes of a progress report's data; more is left out.
const MAX_PROGRESS_DATA: usize = 16 * 1024;
/// Most bytes of a progress report's message.
const MAX_PROGRESS_MESSAGE: usize = 1000;

/// Why a handler was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody cancelled the job.
    Cancelled,
    /// The attempt or the whole job ran out of time.
    TimedOut,
    /// Another attempt has the job now, or the job is gone.
    Lost,
    /// The worker drains and its time for that is over: the attempt is given back.
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
    token: CancellationToken,
    reason: OnceLock<StopReason>,
    progress: Mutex<Option<v1::Progress>>,
    news: UnboundedSender<Attempt>,
}

impl Context {
    /// The context of an attempt that just began. `None` if the offer's names are not valid ones.
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
            token: CancellationToken::new(),
            reason: OnceLock::new(),
            progress: Mutex::new(None),
            news,
        };
        Some(Context { inner: Arc::new(inner) })
    }

    /// The concurrency slot it runs under.
    pub(super) fn concurrency_slot(&self) -> Option<v1::Slot> {
        self.inner.slot.clone()
    }

    /// Its trace, to go back with the result; empty unless somebody records it.
    pub(super) fn sampled_trace(&self) -> String {
        self.inner.trace.filter(|trace| trace.is_sampled()).map(|trace| trace.to_string()).unwrap_or_default()
    }

    /// The job's id.
    pub fn job_id(&self) -> JobId {
        self.inner.attempt.job
    }

    /// Its topic.
    pub fn topic(&self) -> &Topic {
        &self.inner.topic
    }

    /// Whose job it is.
    pub fn tenant(&self) -> &Tenant {
        &self.inner.tenant
    }

    /// What its submitter tagged it with.
    pub fn labels(&self) -> &Labels {
        &self.inner.labels
    }

    /// Which attempt this is; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.inner.number
    }

    /// How many attempts there may be.
    pub fn max_attempts(&self) -> u32 {
        self.inner.max_attempts
    }

    /// The attempt's fencing token. It grows with every attempt: hand it to whatever you write to,
    /// and let that refuse anything lower than it has seen.
    pub fn fence(&self) -> u64 {
        self.inner.attempt.fence
    }

    /// When the whole job has to be over, in Redis time.
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

    /// Tells how far the job is. Sent within 200 ms, the latest report winning. `percent` is cut to
    /// 0-100, the message to 1,000 bytes; data of more than 16 KiB is left out.
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
            // The loop hears of it once, however often the handler reports before it comes by.
            let _ = self.inner.news.send(self.inner.attempt);
        }
    }

    /// Whether the handler should stop: nobody wants its result any more.
    pub fn is_cancelled(&self) -> bool {
        self.inner.token.is_cancelled()
    }

    /// Resolves when the handler should stop. What has not stopped some seconds later is aborted.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.inner.token.cancelled()
    }

    /// A token that is cancelled with the attempt, for handing on.
    pub fn cancellation(&self) -> CancellationToken {
        self.inner.token.child_token()
    }

    /// Why the handler should stop; `None` while it should not.
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

    /// Puts a report back that could not be sent, unless there is a newer one.
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
