//! Concurrency slots: which jobs may run at the same time, and when a slot is free again.
//!
//! A slot is named by a job and the version under which the job was admitted. It belongs to one offer and to the one
//! attempt that results from that offer. A job may need two slots: one of its `concurrency_key`, and one of its topic,
//! which is called a place; both are taken under the same version. Only the job's record decides whether a slot is
//! over; time only decides when to check. This module is pure: the store keeps the set of slots, and the scheduler
//! admits jobs.

use std::time::Duration;

use crate::{Event, Head, Phase, Time, Topic, job::EndedBy};

/// A slot is checked this long after its admission. By then the scheduler that admitted the job has dispatched it, or
/// never will.
pub const SLOT_LOOK: Duration = Duration::from_secs(30);
/// How many jobs with the same key run at once where the topic's settings give no number.
pub const PER_KEY: u32 = 1;
/// Most bytes of a concurrency key.
pub const MAX_KEY: usize = 128;

/// A set of jobs that must not all run at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// A tenant's jobs with this `concurrency_key`.
    Key(String),
    /// A tenant's jobs of this topic, if the topic's settings have a `concurrency.max`.
    Topic(Topic),
}

/// What is known about the job that a slot names.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The state of the job.
    pub head: &'a Head,
    /// The version under which the job was last admitted.
    pub slot: Option<u32>,
    /// The end of the job's last lease, if the lease had not ended when its attempt ended.
    pub lease_until: Option<Time>,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// No attempt runs under the slot any more.
    Over,
    /// The job still waits under this version: the scheduler that admitted it may be about to dispatch it.
    Admitting,
    /// The slot is in use; check it again at this time.
    Held(Time),
}

/// Judges the slot that was taken under this version. If the job has no record, the slot is over.
pub fn judge(version: u32, holder: Option<Holder<'_>>, now: Time) -> Slot {
    let Some(Holder { head, slot, lease_until }) = holder else { return Slot::Over };
    // In a backlog that moves fast, jobs wait in line without a write to their records, so they are still pending.
    if head.version == version && matches!(head.phase, Phase::Queued | Phase::Pending { .. }) {
        return Slot::Admitting;
    }
    if slot != Some(version) {
        return Slot::Over;
    }
    match &head.phase {
        Phase::Dispatched => Slot::Held(now + SLOT_LOOK),
        Phase::Running { lease, .. } => Slot::Held(lease.until.max(now)),
        // The job ended by a cancel or by the clock while its lease was alive: its worker may still be running it.
        _ => match lease_until.filter(|until| cut_off(head) && !until.reached(now)) {
            Some(until) => Slot::Held(until),
            None => Slot::Over,
        },
    }
}

fn cut_off(head: &Head) -> bool {
    matches!(head.ended_by(), Some(EndedBy::Cancel | EndedBy::Clock)) || head.attempt_ended_by == Some(Event::CutShort)
}

/// Judges a concurrency key: 1 to 128 visible ASCII characters.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    match !key.is_empty() && key.len() <= MAX_KEY && key.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("is 1 to 128 visible ASCII characters without spaces"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, StartId, WorkerId, job::Lease};

    const NOW: Time = Time(1_800_000_000_000_000);
    const S: Duration = Duration::from_secs(1);

    fn head(version: u32, phase: Phase, ended_by: Option<Event>) -> Head {
        Head {
            version,
            attempt: 1,
            max_attempts: 5,
            lost: 0,
            released: 0,
            timeout: None,
            fence: 7,
            since: NOW,
            deadline: None,
            start_by: None,
            started_at: Some(NOW),
            created_at: NOW,
            last_event: ended_by,
            attempt_ended_by: ended_by,
            last_worker: Some(WorkerId::trusted("w")),
            phase,
        }
    }

    fn running(until: Time) -> Phase {
        Phase::Running {
            lease: Lease { worker: WorkerId::trusted("w"), start_id: StartId([0; 8]), until },
            attempt_end: None,
        }
    }

    #[test]
    fn a_slot_is_held_for_as_long_as_somebody_may_run_under_it() {
        let later = NOW + 20 * S;
        let ended = |by, lease| (head(9, Phase::Ended { end: Ending::Cancelled, lease_end: lease }, Some(by)), lease);
        let retrying = head(9, Phase::Retrying { run_at: later }, Some(Event::CutShort));
        let cases = [
            ("waits to be dispatched", (head(5, Phase::Queued, None), None), None, Slot::Admitting),
            ("stands in line", (head(5, Phase::Pending { run_at: Time::NONE }, None), None), None, Slot::Admitting),
            ("taken back", (head(7, Phase::Pending { run_at: Time::NONE }, None), None), Some(5), Slot::Over),
            ("admitted anew since", (head(6, Phase::Queued, None), None), Some(3), Slot::Over),
            ("never dispatched under it", (head(6, Phase::Dispatched, None), None), Some(4), Slot::Over),
            ("offered", (head(6, Phase::Dispatched, None), None), Some(5), Slot::Held(NOW + SLOT_LOOK)),
            ("offered again", (head(7, Phase::Dispatched, None), None), Some(5), Slot::Held(NOW + SLOT_LOOK)),
            ("running", (head(7, running(later), None), None), Some(5), Slot::Held(later)),
            ("silent, not yet rescued", (head(7, running(NOW.before(S)), None), None), Some(5), Slot::Held(NOW)),
            ("cancelled under a live lease", ended(Event::Cancel, Some(later)), Some(5), Slot::Held(later)),
            ("timed out under a live lease", ended(Event::TimeOut, Some(later)), Some(5), Slot::Held(later)),
            ("cancelled, lease over", ended(Event::Cancel, Some(NOW)), Some(5), Slot::Over),
            ("reported by its worker", ended(Event::Succeed, None), Some(5), Slot::Over),
            ("attempt cut short", (retrying.clone(), Some(later)), Some(5), Slot::Held(later)),
            ("attempt cut short, lease over", (retrying, Some(NOW)), Some(5), Slot::Over),
        ];
        for (what, (head, lease_until), slot, verdict) in cases {
            assert_eq!(judge(5, Some(Holder { head: &head, slot, lease_until }), NOW), verdict, "{what}");
        }
        assert_eq!(judge(5, None, NOW), Slot::Over, "no such job");
    }

    #[test]
    fn keys_are_visible_and_short() {
        assert!(check_key("customer:17").is_ok());
        for bad in ["", "a b", "\u{e4}", "a\n", &"x".repeat(129)] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }
}
