//! The schedulers that have answered lately, and how long an answer usually takes. Decides whom to ask next; asking is
//! in `schedulers`.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The second scheduler is asked after this many times the usual answer time, within these bounds.
const USUAL_TIMES: u32 = 4;
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(1);
/// While the queue group is suspected, the second scheduler is asked after the usual answer time, but not before this.
const SOONEST_IN_DOUBT: Duration = Duration::from_millis(50);
/// After this many requests in a row that the queue group did not answer and a scheduler by name did, the group is
/// avoided for this long. A busy scheduler is slow now and then; a frozen one is silent each time.
const SILENCES: u32 = 3;
const AVOID: Duration = Duration::from_secs(3);
/// A scheduler that has not answered for this long is forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// The most schedulers that are remembered.
const MOST: usize = 16;

/// The receiver of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Group,
    Named(String),
}

/// The schedulers as this process knows them.
#[derive(Debug, Default)]
pub(crate) struct Schedulers(Mutex<Known>);

#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The schedulers that answered, the latest last, with the time of that answer.
    answered: Vec<(String, Instant)>,
    /// A moving average of answer times.
    usual: Duration,
    avoid_group_until: Option<Instant>,
    /// How many times in a row the group did not answer.
    silences: u32,
}

impl Known {
    /// How long to wait for an answer before another scheduler is asked.
    pub(crate) fn patience(&self) -> Duration {
        // One more silence makes the group avoided: the request that finds this out should not wait long.
        if self.silences >= SILENCES - 1 {
            return self.usual.clamp(SOONEST_IN_DOUBT, LATEST);
        }
        (self.usual * USUAL_TIMES).clamp(SOONEST, LATEST)
    }

    /// The next receiver to ask.
    pub(crate) fn next(&mut self, asked: &[Target], now: Instant) -> Target {
        self.answered.retain(|(_, at)| now.duration_since(*at) < FORGET);
        let avoid = self.avoid_group_until.is_some_and(|until| until > now);
        if asked.is_empty() && !avoid {
            return Target::Group;
        }
        let fresh = |name: &&String| !asked.iter().any(|target| matches!(target, Target::Named(n) if n == *name));
        self.answered.iter().rev().map(|(name, _)| name).find(fresh).cloned().map_or(Target::Group, Target::Named)
    }

    /// Records that the scheduler `by` answered at `target` after `took`; `late` are the targets that were asked before
    /// and did not answer.
    pub(crate) fn answered(&mut self, by: &str, took: Duration, target: &Target, late: &[Target], now: Instant) {
        self.usual = if self.usual.is_zero() { took } else { (self.usual * 7 + took) / 8 };
        match target {
            Target::Group => self.silences = 0,
            Target::Named(_) if late.contains(&Target::Group) => self.silences += 1,
            Target::Named(_) => {}
        }
        if self.silences >= SILENCES {
            self.avoid_group_until = Some(now + AVOID);
            // After that, one more silence is enough.
            self.silences = SILENCES - 1;
        }
        self.answered.retain(|(name, _)| {
            name != by && !late.iter().any(|target| matches!(target, Target::Named(silent) if silent == name))
        });
        if self.answered.len() == MOST {
            self.answered.remove(0);
        }
        self.answered.push((by.to_owned(), now));
    }
}

impl Known {
    /// Forgets a scheduler that has left.
    pub(crate) fn forget(&mut self, name: &str) {
        self.answered.retain(|(known, _)| known != name);
    }
}

impl Schedulers {
    /// The current knowledge, for a moment.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Target {
        Target::Named(name.to_owned())
    }

    #[tokio::test]
    async fn the_group_is_asked_first_and_then_who_answered_last() {
        let (mut known, now) = (Known::default(), Instant::now());
        assert_eq!(known.next(&[], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now), Target::Group, "no name is known");
        for name in ["s1", "s2"] {
            known.answered(name, Duration::from_millis(1), &Target::Group, &[], now);
        }
        assert_eq!(known.next(&[], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now), named("s2"));
        assert_eq!(known.next(&[Target::Group, named("s2")], now), named("s1"));
        assert_eq!(known.next(&[Target::Group, named("s2"), named("s1")], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now + FORGET), Target::Group, "forgotten");
    }

    #[tokio::test]
    async fn a_silent_group_is_avoided_for_a_while_and_a_silent_scheduler_forgotten() {
        let (mut known, now) = (Known::default(), Instant::now());
        for name in ["s1", "s2"] {
            known.answered(name, Duration::from_millis(1), &Target::Group, &[], now);
        }
        for _ in 1..SILENCES {
            known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group, named("s2")], now);
            assert_eq!(known.next(&[], now), Target::Group, "it may only be slow");
        }
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group, named("s2")], now);
        assert_eq!(known.next(&[], now), named("s1"));
        assert_eq!(known.next(&[named("s1")], now), Target::Group, "s2 was silent");
        assert_eq!(known.next(&[], now + AVOID), Target::Group);
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group], now + AVOID);
        assert_eq!(known.next(&[], now + AVOID), named("s1"), "still silent");
        known.answered("s2", Duration::from_millis(1), &Target::Group, &[], now + 3 * AVOID);
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group], now + 3 * AVOID);
        assert_eq!(known.next(&[], now + 3 * AVOID), Target::Group, "it has answered since");
    }

    #[tokio::test]
    async fn patience_follows_the_usual_answer_time() {
        let (mut known, now) = (Known::default(), Instant::now());
        assert_eq!(known.patience(), SOONEST);
        for _ in 0..50 {
            known.answered("s1", Duration::from_millis(80), &Target::Group, &[], now);
        }
        assert_eq!(known.patience().as_millis(), 320);
        for _ in 0..50 {
            known.answered("s1", Duration::from_secs(5), &Target::Group, &[], now);
        }
        assert_eq!(known.patience(), LATEST, "slow schedulers are not asked twice as often");
    }

    #[tokio::test]
    async fn a_doubted_group_is_given_less_time() {
        let (mut known, now) = (Known::default(), Instant::now());
        let silent = |known: &mut Known| known.answered("s1", Duration::ZERO, &named("s1"), &[Target::Group], now);
        for _ in 2..SILENCES {
            silent(&mut known);
        }
        assert_eq!(known.patience(), SOONEST, "it may only be slow");
        for _ in 0..5 {
            silent(&mut known);
            assert_eq!(known.patience(), SOONEST_IN_DOUBT, "also when it is tried again after a while");
        }
        known.answered("s2", Duration::ZERO, &Target::Group, &[], now);
        assert_eq!(known.patience(), SOONEST, "it has answered since");
    }
}
