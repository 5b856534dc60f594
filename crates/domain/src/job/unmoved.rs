//! Decides which jobs a scheduler may offer, or put in line, without writing to their records (see the ADR
//! `offered-as-it-is`). The scheduler applies this rule and the gateway explains it, so both use the same code.

use crate::topic::TopicSettings;

/// The properties of a pending job that decide whether its record may stay as the submit wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmoved {
    /// The version of the job's record.
    pub version: u32,
    /// The job has a deadline, or a moment by which it must start.
    pub is_bounded: bool,
    /// The job has a concurrency key, so it needs a slot.
    pub has_key: bool,
}

impl Unmoved {
    /// Whether the record may stay unchanged: it has not changed since the submit, and the job has no deadline, no
    /// start-by moment and no concurrency key.
    pub fn may_stay(self) -> bool {
        self.version == 1 && !self.is_bounded && !self.has_key
    }
}

impl TopicSettings {
    /// Whether jobs leave the backlog of this topic only under a limit, so that no job goes straight onto the bus.
    /// `concurrency.per_key` alone is no such limit: it applies only to jobs with a key, and each of those waits for
    /// its slot anyway.
    pub fn limits_release(&self) -> bool {
        self.rate.is_some() || self.concurrency.is_some_and(|limits| limits.max.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::{Concurrency, TopicRate};

    #[test]
    fn only_a_job_without_moments_and_limits_stays_as_it_was_accepted() {
        let plain = Unmoved { version: 1, is_bounded: false, has_key: false };
        assert!(plain.may_stay());
        for other in
            [Unmoved { version: 2, ..plain }, Unmoved { is_bounded: true, ..plain }, Unmoved { has_key: true, ..plain }]
        {
            assert!(!other.may_stay(), "{other:?}");
        }
    }

    #[test]
    fn a_rate_or_a_number_of_places_limits_the_release_and_slots_per_key_do_not() {
        let concurrency =
            |max, per_key| TopicSettings { concurrency: Some(Concurrency { max, per_key }), ..Default::default() };
        assert!(!TopicSettings::default().limits_release());
        assert!(!concurrency(None, Some(2)).limits_release());
        assert!(concurrency(Some(3), None).limits_release());
        let rate = Some(TopicRate { per_s: 1.0, burst: 1 });
        assert!(TopicSettings { rate, ..Default::default() }.limits_release());
    }
}
