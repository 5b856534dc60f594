//! Decides when a worker extends the leases of its attempts, and what the answers mean.
//!
//! All held attempts go out in one request, sent by the loop that runs the work: a loop that hangs loses its leases.
//! Every sixth of a lease the loop selects attempts whose lease was last confirmed a sixth ago or earlier, so no
//! confirmation gets older than a third, and a short job is never extended at all. Progress is sent in the same
//! requests, soon after it was reported. Silence ends nothing here: without an answer the work continues and so do the
//! requests.

use std::time::Duration;

use bytes::Bytes;
use muster_wire::{encoded_len, v1};
use tokio::time::Instant;

use super::{Attempt, context::StopReason};

/// The shortest time between two requests that carry progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(150);
/// The most asks in one request.
const MAX_ASKS: usize = 1000;
/// How soon to ask again when some or all answers are missing.
const REPEAT: Duration = Duration::from_millis(500);

/// What an answer means for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// This worker still holds the attempt.
    Held,
    /// The attempt ended as this worker reported.
    Settled,
    /// The attempt is over, for this reason.
    Over(StopReason),
    /// No scheduler could tell.
    Unknown,
}

/// Reads an answer. An attempt with standing `ok` and no lease left was ended by this worker's own report.
pub(super) fn standing(answer: &v1::ExtendAnswer) -> Standing {
    match answer.standing() {
        v1::Standing::Ok if answer.lease_us == 0 => Standing::Settled,
        v1::Standing::Ok => Standing::Held,
        other => over(other).map_or(Standing::Unknown, Standing::Over),
    }
}

/// Why an attempt is over. A standing that only a newer scheduler knows changes nothing.
pub(super) fn over(standing: v1::Standing) -> Option<StopReason> {
    match standing {
        v1::Standing::Lost | v1::Standing::UnknownJob => Some(StopReason::Lost),
        v1::Standing::Cancelled => Some(StopReason::Cancelled),
        v1::Standing::TimedOut => Some(StopReason::TimedOut),
        v1::Standing::Ok | v1::Standing::Again | v1::Standing::Unspecified => None,
    }
}

/// The schedule of extensions.
#[derive(Debug)]
pub(super) struct Leases {
    lease: Duration,
    sweep_at: Instant,
    progress_at: Instant,
    progress: Vec<Attempt>,
    under_way: bool,
}

/// The extensions that are due now.
#[derive(Debug, PartialEq)]
pub(super) struct Due {
    /// Extend the attempts last confirmed at or before this moment; none when no sweep is due.
    pub(super) before: Option<Instant>,
    /// Attempts that reported progress.
    pub(super) progress: Vec<Attempt>,
}

impl Leases {
    pub(super) fn new(lease: Duration, now: Instant) -> Leases {
        Leases { lease, sweep_at: now + lease / 6, progress_at: now, progress: Vec::new(), under_way: false }
    }

    /// Notes that this attempt has progress to send.
    pub(super) fn reported(&mut self, attempt: Attempt) {
        self.progress.push(attempt);
    }

    /// When progress is to be sent; none if there is none.
    pub(super) fn progress_due(&self) -> Option<Instant> {
        (!self.progress.is_empty() && !self.under_way).then_some(self.progress_at)
    }

    /// What to ask for now. Only one request is in flight at a time.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        if self.under_way {
            return None;
        }
        let sweep = self.sweep_at <= now;
        let speak = self.progress_due().is_some_and(|at| at <= now);
        if !sweep && !speak {
            return None;
        }
        let before = sweep.then(|| now - self.lease / 6);
        if sweep {
            self.sweep_at = now + self.lease / 6;
        }
        self.progress_at = now + PROGRESS_PAUSE;
        Some(Due { before, progress: std::mem::take(&mut self.progress) })
    }

    /// Notes that a request goes out.
    pub(super) fn asked(&mut self) {
        self.under_way = true;
    }

    /// Notes that the request is over; `whole` if everything in it was answered.
    pub(super) fn answered(&mut self, whole: bool, now: Instant) {
        self.under_way = false;
        if !whole {
            self.sweep_at = self.sweep_at.min(now + REPEAT.min(self.lease / 6));
            self.progress_at = now + REPEAT;
        }
    }

    /// How long one request may take.
    pub(super) fn patience(&self) -> Duration {
        (self.lease / 6).clamp(Duration::from_millis(250), Duration::from_secs(2))
    }

    /// The entry of one attempt in a request.
    pub(super) fn ask(
        &self,
        attempt: Attempt,
        tenant: &str,
        topic: &str,
        progress: Option<v1::Progress>,
    ) -> v1::ExtendAsk {
        v1::ExtendAsk {
            job_id: Bytes::copy_from_slice(attempt.job.as_bytes()),
            fence: attempt.fence,
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            progress,
            tenant: tenant.to_owned(),
            topic: topic.to_owned(),
        }
    }
}

/// Splits asks into requests that the bus can carry.
pub(super) fn split(asks: Vec<(Attempt, v1::ExtendAsk)>, most_bytes: usize) -> Vec<Vec<(Attempt, v1::ExtendAsk)>> {
    let mut requests: Vec<Vec<_>> = Vec::new();
    let mut room = 0;
    for ask in asks {
        // Adds a few bytes to the size of the ask, for its frame in the request.
        let size = encoded_len(&ask.1) + 8;
        match requests.last_mut() {
            Some(last) if last.len() < MAX_ASKS && size <= room => {
                room -= size;
                last.push(ask);
            }
            _ => {
                room = most_bytes.saturating_sub(size + 256);
                requests.push(vec![ask]);
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use muster_domain::JobId;

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn no_lease_gets_older_than_a_third() {
        let now = Instant::now();
        let mut leases = Leases::new(LEASE, now);
        assert_eq!(leases.due(now + LEASE / 7), None);
        let sweep = now + LEASE / 6;
        let due = leases.due(sweep).unwrap();
        assert_eq!(due.before, Some(now));
        // An attempt confirmed just after `before` is at most a third old at the next sweep.
        let next = leases.due(sweep + LEASE / 6).unwrap();
        assert_eq!(next.before, Some(sweep));
    }

    #[tokio::test]
    async fn silence_is_asked_again_soon_and_requests_do_not_pile_up() {
        let now = Instant::now();
        let mut leases = Leases::new(LEASE, now);
        leases.due(now + LEASE / 6).unwrap();
        leases.asked();
        assert_eq!(leases.due(now + LEASE), None);
        leases.answered(false, now + LEASE);
        assert!(leases.due(now + LEASE + REPEAT).unwrap().before.is_some());
    }

    #[tokio::test]
    async fn progress_goes_at_once_and_then_grouped() {
        let now = Instant::now();
        let mut leases = Leases::new(LEASE, now);
        let attempt = Attempt { job: JobId::mint(0), fence: 1 };
        leases.reported(attempt);
        assert_eq!(leases.due(now), Some(Due { before: None, progress: vec![attempt] }));
        leases.reported(attempt);
        assert_eq!(leases.due(now), None);
        assert_eq!(leases.progress_due(), Some(now + PROGRESS_PAUSE));
        assert!(leases.due(now + PROGRESS_PAUSE).is_some());
    }

    #[tokio::test]
    async fn requests_stay_below_what_the_bus_carries() {
        let leases = Leases::new(LEASE, Instant::now());
        let report = v1::Progress { data: "x".repeat(1000), ..v1::Progress::default() };
        let attempt = Attempt { job: JobId::mint(0), fence: 1 };
        let asks: Vec<_> = (0..100).map(|_| (attempt, leases.ask(attempt, "a", "b", Some(report.clone())))).collect();
        let requests = split(asks, 10_000);
        assert_eq!(requests.iter().map(Vec::len).sum::<usize>(), 100);
        for request in requests {
            let items = request.into_iter().map(|(_, ask)| ask).collect();
            assert!(encoded_len(&v1::ExtendRequest { worker: "w".into(), items }) < 10_000);
        }
    }
}
