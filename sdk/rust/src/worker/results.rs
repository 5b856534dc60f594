//! The outcomes of attempts, remembered until a scheduler has settled them.
//!
//! This module holds every result (and release) without a `settled` so far. Each is published until
//! the stream acked it, and published again until `settled` comes. The first report about an
//! attempt is never replaced by another. `leases` extends the leases of these attempts, and the bus
//! sends the messages.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use muster_wire::{encoded_len, v1};
use tokio::time::Instant;

use super::Attempt;

/// How soon a result that the stream did not ack is published again.
const UNACKED_WAIT: Duration = Duration::from_millis(500);
/// Beyond this many results, or bytes of them, the worker takes no new work.
const MAX_UNSETTLED: usize = 20_000;
const MAX_UNSETTLED_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug)]
struct Unsettled {
    result: v1::Result,
    size: usize,
    /// The last proof that the lease was held.
    confirmed: Instant,
    /// When to publish (again); none while a publish is in flight.
    due: Option<Instant>,
    tries: u32,
}

/// The results that are finished and not settled.
#[derive(Debug)]
pub(super) struct Results {
    unsettled: HashMap<Attempt, Unsettled>,
    fresh: Vec<Attempt>,
    bytes: usize,
    patience: Duration,
}

impl Results {
    /// `patience` is how long an acked result may go unsettled before it is published again.
    pub(super) fn new(patience: Duration) -> Results {
        Results { unsettled: HashMap::new(), fresh: Vec::new(), bytes: 0, patience }
    }

    /// Shortens the patience from now on.
    pub(super) fn hurry(&mut self, patience: Duration, now: Instant) {
        self.patience = patience;
        for result in self.unsettled.values_mut() {
            result.due = result.due.map(|due| due.min(now + patience));
        }
    }

    /// Remembers the outcome of an attempt. The first report is kept.
    pub(super) fn add(&mut self, attempt: Attempt, result: v1::Result, confirmed: Instant) {
        let size = encoded_len(&result);
        let entry = Unsettled { result, size, confirmed, due: None, tries: 0 };
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.unsettled.entry(attempt) {
            vacant.insert(entry);
            self.bytes += size;
            self.fresh.push(attempt);
        }
    }

    /// The results to publish now: all new ones, and those that `tick` found due.
    pub(super) fn take_ready(&mut self) -> Vec<(Attempt, v1::Result)> {
        let mut ready = Vec::with_capacity(self.fresh.len());
        for attempt in std::mem::take(&mut self.fresh) {
            if let Some(entry) = self.unsettled.get_mut(&attempt) {
                entry.due = None;
                entry.tries += 1;
                ready.push((attempt, entry.result.clone()));
            }
        }
        ready
    }

    /// Records whether the stream took the result. An acked one has `patience` to be settled.
    pub(super) fn published(&mut self, attempt: Attempt, acked: bool, now: Instant) {
        if let Some(entry) = self.unsettled.get_mut(&attempt) {
            entry.due = Some(now + if acked { self.patience } else { UNACKED_WAIT.min(self.patience) });
        }
    }

    /// Finds results that have to be published again.
    pub(super) fn tick(&mut self, now: Instant) {
        for (attempt, entry) in &mut self.unsettled {
            if entry.due.is_some_and(|due| due <= now) {
                entry.due = None;
                self.fresh.push(*attempt);
            }
        }
    }

    /// Forgets an attempt that is settled or no longer held by this worker.
    pub(super) fn forget(&mut self, attempt: Attempt) -> bool {
        let Some(entry) = self.unsettled.remove(&attempt) else { return false };
        self.bytes -= entry.size;
        true
    }

    /// Attempts whose lease was last confirmed at or before `moment`, each with its result.
    pub(super) fn to_extend(&self, moment: Instant) -> impl Iterator<Item = (Attempt, &v1::Result)> {
        self.unsettled.iter().filter(move |(_, e)| e.confirmed <= moment).map(|(attempt, e)| (*attempt, &e.result))
    }

    /// The lease was extended by a request sent at `sent`.
    pub(super) fn confirm(&mut self, attempt: Attempt, sent: Instant) {
        if let Some(entry) = self.unsettled.get_mut(&attempt) {
            entry.confirmed = entry.confirmed.max(sent);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.unsettled.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Whether so much is unsettled that the worker should take no new work.
    pub(super) fn is_full(&self) -> bool {
        self.unsettled.len() >= MAX_UNSETTLED || self.bytes >= MAX_UNSETTLED_BYTES
    }
}

/// The result of an attempt as it is sent.
pub(super) fn result(attempt: Attempt, worker: &str, tenant: &str, topic: &str, kind: v1::result::Kind) -> v1::Result {
    v1::Result {
        job_id: Bytes::copy_from_slice(attempt.job.as_bytes()),
        fence: attempt.fence,
        worker: worker.to_owned(),
        tenant: tenant.to_owned(),
        topic: topic.to_owned(),
        slot: None,
        traceparent: String::new(),
        carried: Bytes::new(),
        kind: Some(kind),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::JobId;

    use super::*;

    fn attempt() -> Attempt {
        Attempt { job: JobId::mint(0), fence: 7 }
    }

    fn release(attempt: Attempt) -> v1::Result {
        result(attempt, "w", "default", "t", v1::result::Kind::Release(v1::Release { delay_ms: 0 }))
    }

    #[tokio::test]
    async fn a_result_is_published_until_it_is_settled() {
        let (mut results, now, a) = (Results::new(Duration::from_secs(10)), Instant::now(), attempt());
        results.add(a, release(a), now);
        assert_eq!(results.take_ready().len(), 1);
        results.tick(now + Duration::from_secs(99));
        assert!(results.take_ready().is_empty(), "a publish is under way");

        results.published(a, false, now);
        results.tick(now + UNACKED_WAIT);
        assert_eq!(results.take_ready().len(), 1, "not acked");
        results.published(a, true, now);
        results.tick(now + Duration::from_secs(9));
        assert!(results.take_ready().is_empty());
        results.tick(now + Duration::from_secs(10));
        assert_eq!(results.take_ready().len(), 1, "acked, not settled");

        assert!(results.forget(a) && !results.forget(a));
        assert!(results.is_empty() && results.bytes == 0);
        results.published(a, true, now);
        results.tick(now + Duration::from_secs(99));
        assert!(results.take_ready().is_empty());
    }

    #[tokio::test]
    async fn what_was_said_first_about_an_attempt_stands() {
        let (mut results, now, a) = (Results::new(Duration::from_secs(10)), Instant::now(), attempt());
        let done = result(a, "w", "default", "t", v1::result::Kind::Success(v1::Success::default()));
        results.add(a, done.clone(), now);
        results.add(a, release(a), now);
        assert_eq!(results.take_ready(), [(a, done)]);
    }

    #[tokio::test]
    async fn unsettled_attempts_are_extended_while_their_lease_is_old() {
        let (mut results, now, a) = (Results::new(Duration::from_secs(10)), Instant::now(), attempt());
        results.add(a, release(a), now);
        assert_eq!(results.to_extend(now).count(), 1);
        results.confirm(a, now + Duration::from_secs(1));
        assert_eq!(results.to_extend(now).count(), 0);
    }
}
