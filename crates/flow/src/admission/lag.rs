//! Measures how far the schedulers are behind with the submits, and refuses submits when that is too far.
//!
//! Knows: the age of the oldest submit that no scheduler has handled, as of the last measurement of this replica, and
//! the limit. Promises: for a submit the check costs one read of a number. Beyond the limit a submit is refused
//! before anything is stored, and the answer says when to retry. An outage does not count as lag: while Redis or NATS
//! does not answer, no submit is refused for lag. After an outage, and after the start of this replica, the
//! schedulers have the whole limit to catch up. Leaves to others: handling submits and publishing lost ones again
//! (the scheduler).

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use muster_domain::job::Known;
use muster_telemetry::{Gauge, set};

use super::refusal::Refusal;
use crate::Flow;

/// The pause between two measurements.
const EVERY: Duration = Duration::from_secs(1);
/// How many measurements are skipped in a row while this replica gets no submits and the schedulers are not behind:
/// each measurement queries both stores.
const LEFT_OUT: u32 = 4;
/// How long one measurement may take.
const ANSWER: Duration = Duration::from_secs(2);

/// The lag as this replica last measured it.
#[derive(Debug)]
pub(super) struct Lag {
    /// `None`: submits are accepted however far the schedulers are behind.
    limit: Option<Duration>,
    /// How far behind the schedulers are, in milliseconds.
    behind: AtomicU64,
    /// Whether a submit has arrived since the last measurement.
    asked: AtomicBool,
}

impl Lag {
    /// Starts without a measurement, so that no submit is refused. A limit of zero means no limit.
    pub(super) fn new(limit: Duration) -> Lag {
        Lag {
            limit: Some(limit).filter(|limit| !limit.is_zero()),
            behind: AtomicU64::new(0),
            asked: AtomicBool::new(true),
        }
    }

    /// Admits a submit, unless the schedulers are too far behind with earlier ones.
    pub(super) fn admit(&self) -> Result<(), Refusal> {
        self.asked.store(true, Ordering::Relaxed);
        if !self.is_over() {
            return Ok(());
        }
        Err(Refusal::Behind { by: Duration::from_millis(self.behind.load(Ordering::Relaxed)) })
    }

    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| Duration::from_millis(self.behind.load(Ordering::Relaxed)) > limit)
    }

    /// Measures repeatedly for as long as it runs.
    pub(super) async fn watch(&self, flow: &Flow) {
        let (mut undisturbed, mut left_out) = (None, 0);
        loop {
            if !self.is_wanted() && left_out < LEFT_OUT {
                left_out += 1;
                tokio::time::sleep(EVERY).await;
                continue;
            }
            left_out = 0;
            let age = tokio::time::timeout(ANSWER, oldest_age(flow)).await.ok().flatten();
            if let Some(age) = age {
                set(Gauge::SubmitLag, &[], age.as_secs_f64());
            }
            self.note(counted(age, &mut undisturbed, Instant::now()));
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Whether the next measurement is needed.
    fn is_wanted(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed) || self.behind.load(Ordering::Relaxed) > 0
    }

    fn note(&self, behind: Duration) {
        let before = self.is_over();
        self.behind.store(u64::try_from(behind.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match (before, self.is_over()) {
            (false, true) => tracing::warn!(event = "submits_refused", ?behind, "the schedulers are too far behind"),
            (true, false) => tracing::info!(event = "submits_taken", ?behind, "the schedulers have caught up"),
            _ => {}
        }
    }
}

/// The age of the oldest submit that no scheduler has handled; `None` if a store does not answer.
async fn oldest_age(flow: &Flow) -> Option<Duration> {
    let (redis, oldest) = tokio::join!(flow.store.ping(), flow.bus.oldest_unhandled_submit());
    redis.ok()?;
    match oldest {
        Known::Unknown => None,
        Known::Empty => Some(Duration::ZERO),
        // A submit without a time has no known age.
        Known::Oldest(sent_at) => Some(sent_at.some().map_or(Duration::ZERO, |at| flow.store.now().since(at))),
    }
}

/// The part of the age that counts: at most the time for which both stores have answered every question. Before that
/// no scheduler could handle anything.
fn counted(age: Option<Duration>, undisturbed: &mut Option<Instant>, now: Instant) -> Duration {
    match age {
        Some(age) => age.min(now.duration_since(*undisturbed.get_or_insert(now))),
        None => {
            *undisturbed = None;
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn what_is_past_the_limit_is_told_when_to_come_back() {
        let lag = Lag::new(LIMIT);
        lag.note(LIMIT);
        assert_eq!(lag.admit(), Ok(()));
        lag.note(LIMIT + secs(1));
        let refused = lag.admit().unwrap_err();
        assert_eq!(refused, Refusal::Behind { by: LIMIT + secs(1) });
        assert!(refused.to_string().contains("61 s behind") && refused.retry_after().is_some(), "{refused}");
        lag.note(Duration::ZERO);
        assert_eq!(lag.admit(), Ok(()));
    }

    #[test]
    fn without_a_limit_nobody_is_refused() {
        let lag = Lag::new(Duration::ZERO);
        lag.note(secs(3600));
        assert_eq!(lag.admit(), Ok(()));
    }

    #[test]
    fn nobody_asks_the_stores_for_nobody() {
        let lag = Lag::new(LIMIT);
        assert!(lag.is_wanted() && !lag.is_wanted(), "the first, and then none");
        lag.admit().unwrap();
        assert!(lag.is_wanted() && !lag.is_wanted());
        lag.note(secs(1));
        assert!(lag.is_wanted() && lag.is_wanted(), "while something is behind");
    }

    #[test]
    fn an_outage_is_no_lag() {
        let (began, mut undisturbed) = (Instant::now(), None);
        let mut after = |n: u64, age: Option<u64>| counted(age.map(secs), &mut undisturbed, began + secs(n));
        assert_eq!(after(0, Some(600)), secs(0), "from the start on");
        assert_eq!(after(50, Some(650)), secs(50));
        assert_eq!(after(90, Some(5)), secs(5), "never more than it is");
        assert_eq!(after(91, None), secs(0), "a store is away");
        assert_eq!(after(200, Some(115)), secs(0), "and is back");
        assert_eq!(after(230, Some(145)), secs(30));
        assert_eq!(after(400, Some(0)), secs(0), "nobody submits");
    }
}
