//! A worker that uses only HTTP: it leases jobs from any gateway, extends the leases, reports how attempts ended
//! until the report is answered, and gives back what it cannot finish when it stops.
//!
//! One loop owns everything; at most one lease, one extension and one report are in progress. A lost answer costs
//! nothing: a lease is requested again with the same request id, and a report is repeated.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_sdk::{HandlerError, JobResult};
use serde::{Deserialize, Deserializer};
use serde_json::{json, value::RawValue};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::{
    Settings,
    lease_book::{self, Item, LeaseBook, MAX_ITEMS},
    task::Task,
    work::Work,
};
use crate::{
    api::{Answer, Api, Call, CallError},
    outcome::Failure,
    signals::StopSignals,
    spans,
    target::Door,
};

/// How long a lease request waits for a job.
const LEASE_WAIT: Duration = Duration::from_secs(20);
/// A new job joins an extension in progress no sooner than this after the extension began.
const EXTENSION_AGE: Duration = Duration::from_secs(1);
/// The pause between failed tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the last reports may take after a drain.
const LAST_WORDS: Duration = Duration::from_secs(15);

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, CallError>> + 'a>>;
type Running = Pin<Box<dyn Future<Output = (String, u64, Result<JobResult, HandlerError>)>>>;

/// The answer to a lease request.
#[derive(Deserialize)]
struct Leased {
    #[serde(default)]
    items: Vec<Offer>,
    #[serde(default)]
    drain: bool,
}

#[derive(Deserialize)]
struct Offer {
    job_id: String,
    fence: u64,
    attempt: u32,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Box<RawValue>>,
}

/// Reads a field that is present, even if it is `null`.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(field).map(Some)
}

/// An extension in progress.
struct Extending<'a> {
    begun: Instant,
    /// The attempts that it asks for.
    items: Vec<(String, u64)>,
    asking: Asking<'a>,
}

struct HttpWorker<'a> {
    api: &'a Api,
    settings: &'a Settings,
    work: Arc<Work>,
    book: LeaseBook,
    running: FuturesUnordered<Running>,
    /// The lease request that has not been answered yet.
    request: Option<String>,
    leasing: Option<Asking<'a>>,
    lease_after: Instant,
    extending: Option<Extending<'a>>,
    extend_after: Instant,
    fresh: bool,
    reporting: Option<(Vec<Item>, Asking<'a>)>,
    report_after: Instant,
    report_most: usize,
    /// When a drain must be complete.
    drain_until: Option<Instant>,
    /// Whether that time has passed, and handlers were asked to stop.
    gave_back: bool,
}

/// Runs until a signal asks it to stop, then drains.
pub(super) async fn run(settings: Settings, door: Door, work: Arc<Work>, mut stop: StopSignals) -> anyhow::Result<()> {
    if settings.concurrency > MAX_ITEMS {
        let failure = Failure::usage(format!("over HTTP a worker runs at most {MAX_ITEMS} jobs at once"));
        return Err(failure.hint("start more workers, or use --nats-url").into());
    }
    let api = Api::new(door)?;
    let now = Instant::now();
    let mut worker = HttpWorker {
        api: &api,
        settings: &settings,
        work,
        book: LeaseBook::default(),
        running: FuturesUnordered::new(),
        request: None,
        leasing: None,
        lease_after: now,
        extending: None,
        extend_after: now,
        fresh: false,
        reporting: None,
        report_after: now,
        report_most: MAX_ITEMS,
        drain_until: None,
        gave_back: false,
    };
    loop {
        worker.begin_calls()?;
        if worker.is_over() {
            return Ok(());
        }
        let pause = worker.next_moment();
        tokio::select! {
            answer = asked(&mut worker.leasing) => worker.leased(answer)?,
            (items, answer) = extended(&mut worker.extending) => worker.after_extension(&items, answer),
            (items, answer) = reported(&mut worker.reporting) => worker.after_report(&items, answer),
            Some((job, fence, outcome)) = worker.running.next() => worker.book.finish(&job, fence, outcome),
            () = stop.next() => worker.drain(),
            () = sleep_until(pause) => worker.out_of_time()?,
        }
    }
}

impl<'a> HttpWorker<'a> {
    /// Starts the calls that should be in progress and are not.
    fn begin_calls(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let free = self.settings.concurrency - self.book.len().min(self.settings.concurrency);
        // While draining, only a request that may have been answered already is repeated.
        let wanted = if self.drain_until.is_some() { self.request.is_some() } else { free > 0 };
        if self.leasing.is_none() && wanted && now >= self.lease_after {
            self.leasing = Some(self.lease(free));
        }
        let stale =
            self.fresh && self.extending.as_ref().is_some_and(|under_way| now >= under_way.begun + EXTENSION_AGE);
        if stale {
            self.extending = None;
        }
        if self.extending.is_none() && !self.book.is_empty() && now >= self.extend_after {
            self.fresh = false;
            self.extending = Some(self.extend(now));
        }
        if self.reporting.is_none() && now >= self.report_after {
            let items = self.book.next_reports(self.report_most);
            if let Some(first) = items.first() {
                let call = Call::post(first.report.path(), lease_book::body(&items)?).repeatable();
                self.reporting = Some((items, self.ask(call)));
            }
        }
        Ok(())
    }

    fn ask(&self, call: Call) -> Asking<'a> {
        let api = self.api;
        Box::pin(async move { api.call(&call).await })
    }

    fn lease(&mut self, free: usize) -> Asking<'a> {
        let request = self.request.get_or_insert_with(|| Uuid::new_v4().to_string()).clone();
        let wait = if self.drain_until.is_some() { Duration::ZERO } else { LEASE_WAIT };
        let body = json!({
            "request_id": request,
            "worker_id": self.settings.id.as_str(),
            "topics": self.settings.topics.iter().map(|topic| topic.as_str()).collect::<Vec<_>>(),
            "provides": self.settings.provides.iter().cloned().collect::<BTreeMap<_, _>>(),
            "max": free.clamp(1, MAX_ITEMS),
            "wait_ms": spans::millis(wait),
            "lease_ms": spans::millis(self.settings.lease),
        });
        self.ask(Call::post("/worker/lease", body.to_string()).waits(wait).repeatable())
    }

    fn extend(&self, begun: Instant) -> Extending<'a> {
        let items = self.book.extensions();
        // With a wait, the answer comes early when a job is cancelled, and in time to extend again.
        let wait = (self.settings.lease / 3).min(LEASE_WAIT);
        let body = json!({
            "worker_id": self.settings.id.as_str(),
            "wait_ms": spans::millis(wait),
            "lease_ms": spans::millis(self.settings.lease),
            "items": items.iter().map(|(job, fence)| json!({"job_id": job, "fence": fence})).collect::<Vec<_>>(),
        });
        let asking = self.ask(Call::post("/worker/extend", body.to_string()).waits(wait).repeatable());
        Extending { begun, items, asking }
    }

    fn leased(&mut self, answer: Result<Answer, CallError>) -> Result<(), Failure> {
        let leased: Leased = match answer {
            Ok(answer) => {
                self.request = None;
                serde_json::from_str(&answer.text)
                    .map_err(|error| Failure::new(format!("the answer to the lease request cannot be read: {error}")))?
            }
            Err(error) if hopeless(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "no lease");
                self.lease_after = Instant::now() + PAUSE;
                return Ok(());
            }
        };
        for offer in leased.items {
            let Some(stop) = self.book.take(&offer.job_id, offer.fence) else {
                continue;
            };
            self.fresh = true;
            if self.drain_until.is_some() {
                // The job was not begun, so it goes straight back.
                self.book.release(&offer.job_id, offer.fence);
                continue;
            }
            let payload = offer.payload.map(|raw| Bytes::from(String::from(Box::<str>::from(raw))));
            let task = Task {
                job_id: offer.job_id.clone(),
                attempt: offer.attempt,
                fence: offer.fence,
                payload: payload.unwrap_or_default(),
                stop,
                leaves: Box::new(|| false),
            };
            let work = Arc::clone(&self.work);
            self.running.push(Box::pin(async move { (offer.job_id, offer.fence, work.run(task).await) }));
        }
        if leased.drain && self.drain_until.is_none() {
            self.drain();
        }
        Ok(())
    }

    fn after_extension(&mut self, asked: &[(String, u64)], answer: Result<Answer, CallError>) {
        match answer {
            Ok(answer) => self.book.extended(asked, &answer.value),
            Err(error) => {
                tracing::warn!(%error, "leases not extended");
                self.extend_after = Instant::now() + PAUSE;
            }
        }
    }

    fn after_report(&mut self, items: &[Item], answer: Result<Answer, CallError>) {
        match answer {
            Ok(answer) => {
                for said in answer.value["items"].as_array().into_iter().flatten().filter(|s| s["status"] != "ok") {
                    tracing::info!(job = said["job_id"].as_str(), reason = said["reason"].as_str(), "came too late");
                }
                self.book.reported(items);
                self.report_most = MAX_ITEMS;
            }
            Err(CallError::Refused(problem)) if matches!(problem.status, 400 | 413 | 422) => match items {
                [one] => self.book.refused(one, &problem.words()),
                // One of the reports is at fault; sent alone, each gets its own answer.
                _ => self.report_most = 1,
            },
            Err(error) => {
                tracing::warn!(%error, "results not reported yet");
                self.report_after = Instant::now() + PAUSE;
            }
        }
    }

    /// Takes no more jobs; the second time, waits for no job.
    fn drain(&mut self) {
        let now = Instant::now();
        let patience = if self.drain_until.is_some() { Duration::ZERO } else { self.settings.drain };
        tracing::info!(running = self.running.len(), ?patience, "draining");
        self.drain_until = Some(now + patience);
        self.leasing = None;
        self.lease_after = now;
    }

    /// Handles a due time: the end of a drain, or only a call to be tried again.
    fn out_of_time(&mut self) -> Result<(), Failure> {
        let Some(until) = self.drain_until.filter(|until| Instant::now() >= *until) else {
            return Ok(());
        };
        self.book.give_back_all();
        self.gave_back = true;
        self.request = None;
        if Instant::now() >= until + LAST_WORDS {
            let left = self.book.len();
            return Err(Failure::new(format!("{left} jobs were not finished or given back in time")));
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.drain_until.is_some() && self.book.is_empty() && self.running.is_empty() && self.request.is_none()
    }

    /// The next time at which something may be due without an answer.
    fn next_moment(&self) -> Instant {
        let pause = Instant::now() + PAUSE;
        self.drain_until.filter(|_| !self.gave_back).map_or(pause, |until| until.min(pause))
    }
}

/// Whether a refusal is final.
fn hopeless(error: &CallError) -> bool {
    matches!(error, CallError::Refused(problem) if (400..500).contains(&problem.status) && problem.status != 429)
}

/// Awaits the call in progress, if there is one. Cancel-safe, like the next two.
async fn asked(slot: &mut Option<Asking<'_>>) -> Result<Answer, CallError> {
    let Some(asking) = slot else {
        return std::future::pending().await;
    };
    let answer = asking.await;
    *slot = None;
    answer
}

async fn extended(slot: &mut Option<Extending<'_>>) -> (Vec<(String, u64)>, Result<Answer, CallError>) {
    let Some(under_way) = slot else {
        return std::future::pending().await;
    };
    let answer = (&mut under_way.asking).await;
    let items = std::mem::take(&mut under_way.items);
    *slot = None;
    (items, answer)
}

async fn reported(slot: &mut Option<(Vec<Item>, Asking<'_>)>) -> (Vec<Item>, Result<Answer, CallError>) {
    let Some((items, asking)) = slot else {
        return std::future::pending().await;
    };
    let answer = asking.await;
    let items = std::mem::take(items);
    *slot = None;
    (items, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_null_is_not_one_that_is_missing() {
        let payload = |rest: &str| {
            let offer = format!(r#"{{"job_id": "j", "fence": 1, "attempt": 1{rest}}}"#);
            serde_json::from_str::<Offer>(&offer).unwrap().payload.map(|raw| raw.get().to_owned())
        };
        assert_eq!(payload(r#", "payload": null"#).as_deref(), Some("null"));
        assert_eq!(payload(r#", "payload": {"a": 1.50}"#).as_deref(), Some(r#"{"a": 1.50}"#));
        assert_eq!(payload(""), None);
    }
}
