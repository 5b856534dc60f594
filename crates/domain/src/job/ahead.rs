//! What a clock leaves behind that ran ahead and was corrected: moments of a record that no right clock can have
//! written. Redis counts leases, back-offs and delays from its own time. After a correction by an hour such a moment
//! comes an hour late, and a home that obeys the record waits as long.
//!
//! What can be told apart is mended by scrub, with `lua/job/set_back.lua`, which judges again by the same rules. What
//! cannot be told apart stays:
//! - a `run_at`, `deadline` or `start_by`: once in the record, a client's moment and one that was counted from a
//!   submit by the wrong clock look the same. Only a `run_at` keeps in the spec whether it was a delay;
//! - the expiry of an approval and the time-out of an attempt: a person ends the one, the worker itself the other;
//! - a lease by a clock that was ahead by less than the longest lease: it ends within that time anyway.

use std::time::Duration;

use super::{
    head::{Head, Phase},
    look::CLOCK_SLACK,
    spec::{JobSpec, When},
    state::Event,
};
use crate::Time;

/// The longest lease that is granted.
pub const LONGEST_LEASE: Duration = Duration::from_secs(900);

/// The delay that the submit asked for; none if it named a moment, or nothing.
pub fn asked_delay(spec: &JobSpec) -> Option<Duration> {
    match spec.run_at {
        Some(When::In(delay)) => Some(delay),
        _ => None,
    }
}

/// Whether a clock that ran ahead has written a moment for which this job waits.
pub fn ran_ahead(head: &Head, spec: &JobSpec, now: Time) -> bool {
    let latest = now + CLOCK_SLACK;
    match &head.phase {
        Phase::Running { lease, .. } => lease.until > latest + LONGEST_LEASE,
        // These waits were counted from the moment at which the state was entered.
        Phase::Retrying { .. } => head.since > latest,
        Phase::Scheduled { .. } if head.last_event == Some(Event::Release) => head.since > latest,
        Phase::Pending { run_at } | Phase::Scheduled { run_at } => {
            asked_delay(spec).is_some_and(|delay| *run_at > latest + delay)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        StartId, Tenant, Topic, WorkerId,
        job::{Lease, retry::Backoff},
    };

    const NOW: Time = Time(1_800_000_000_000_000);
    const S: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn head(phase: Phase, since: Time, last_event: Option<Event>) -> Head {
        Head {
            version: 3,
            attempt: 1,
            max_attempts: 2,
            lost: 0,
            released: 0,
            timeout: None,
            fence: 9,
            since,
            deadline: None,
            start_by: None,
            started_at: None,
            created_at: since,
            last_event,
            attempt_ended_by: None,
            last_worker: None,
            phase,
        }
    }

    #[test]
    fn only_moments_that_no_right_clock_writes_are_told_apart() {
        let running = |until| {
            let lease = Lease { worker: WorkerId::trusted("w"), start_id: StartId([0; 8]), until };
            Phase::Running { lease, attempt_end: None }
        };
        let (early, fast) = (NOW.before(S), NOW + HOUR);
        let longest = Backoff::default().max;
        let (none, delay, moment) = (None, Some(When::In(10 * S)), Some(When::At(NOW + 2 * HOUR)));
        let retrying = |run_at| Phase::Retrying { run_at };
        let scheduled = |run_at| Phase::Scheduled { run_at };
        let pending = |run_at| Phase::Pending { run_at };
        let rows = [
            ("a lease by the fast clock", running(fast + 30 * S), fast, None, none, true),
            ("one that the fast clock extended", running(fast + 30 * S), early, None, none, true),
            ("the longest lease", running(NOW + LONGEST_LEASE), early, None, none, false),
            ("a lease that ends soon anyway", running(NOW + 600 * S), NOW + 570 * S, None, none, false),
            ("a back-off by the fast clock", retrying(fast + S), fast, Some(Event::Retry), none, true),
            ("the longest back-off", retrying(NOW + longest), early, Some(Event::Retry), none, false),
            ("a worker's wish for two hours", retrying(NOW + 2 * HOUR), early, Some(Event::Retry), none, false),
            ("a release by the fast clock", scheduled(fast + S), fast, Some(Event::Release), none, true),
            ("a release for two hours", scheduled(NOW + 2 * HOUR), early, Some(Event::Release), none, false),
            ("a delay by the fast clock", scheduled(fast + 10 * S), fast, Some(Event::Schedule), delay, true),
            ("one that is not scheduled yet", pending(fast + 10 * S), fast, None, delay, true),
            ("a delay", scheduled(NOW + 10 * S), early, Some(Event::Schedule), delay, false),
            ("a delay that was set back", scheduled(NOW + 10 * S), fast, Some(Event::Schedule), delay, false),
            ("a client's moment", scheduled(NOW + 2 * HOUR), early, Some(Event::Schedule), moment, false),
            (
                "one that the fast clock scheduled",
                scheduled(NOW + 2 * HOUR),
                fast,
                Some(Event::Schedule),
                moment,
                false,
            ),
            ("no moment to wait for", pending(Time::NONE), fast, None, none, false),
            ("the backlog", Phase::Queued, fast, Some(Event::Hold), none, false),
            ("an offer", Phase::Dispatched, fast, Some(Event::Dispatch), none, false),
        ];
        for (what, phase, since, event, run_at, expected) in rows {
            let mut spec = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
            spec.run_at = run_at;
            assert_eq!(ran_ahead(&head(phase, since, event), &spec, NOW), expected, "{what}");
        }
    }
}
