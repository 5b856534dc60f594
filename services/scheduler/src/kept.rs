//! Submits of jobs that stand in line as they were accepted, so that their release reads nothing.
//!
//! Knows: what this replica has put in line lately. Promises: so many bytes at most, of its own, so that no
//! message stays for a part of it; nothing for longer than such a wait lasts, nor for long after its
//! successors were released, because then somebody else has released it; beyond that nothing is kept, and
//! the record is read. What is kept may be out of
//! date, because others release the same line and people cancel: that harms nobody, because whoever
//! starts an offer compares its version with the record's. Leaves to others: who is released.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use muster_domain::JobId;
use muster_wire::{encoded_len, v1::Submit};

/// Most bytes of submits, and so much for the rest of each.
const MOST_BYTES: usize = 32 * 1024 * 1024;
const EACH: usize = 512;
/// Who stands in line as it was accepted waits for about this long at most.
const LONGEST: Duration = Duration::from_secs(20);
/// Lines are released in their order, give or take this.
const DISORDER: Duration = Duration::from_secs(1);

/// What is kept.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    submits: HashMap<JobId, Held>,
    /// Since when each was kept; of those that were taken meanwhile, too.
    since: VecDeque<(Instant, JobId)>,
    /// Since when the latest had been kept that was taken.
    passed: Option<Instant>,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    size: usize,
    submit: Submit,
}

impl Kept {
    /// Keeps a submit, if there is room.
    pub(crate) fn keep(&self, id: JobId, submit: Submit, now: Instant) {
        let size = encoded_len(&submit) + EACH;
        let mut inner = self.inner();
        inner.forget(now);
        if inner.bytes + size <= MOST_BYTES && !inner.submits.contains_key(&id) {
            inner.bytes += size;
            inner.since.push_back((now, id));
            inner.submits.insert(id, Held { since: now, size, submit: on_its_own(submit) });
        }
    }

    /// Forgets what is kept in vain; [`Kept::keep`] does, too.
    pub(crate) fn forget(&self, now: Instant) {
        self.inner().forget(now);
    }

    /// Gives a submit back that was kept, once.
    pub(crate) fn take(&self, id: JobId) -> Option<Submit> {
        let mut inner = self.inner();
        let held = inner.submits.remove(&id)?;
        inner.bytes -= held.size;
        inner.passed = inner.passed.max(Some(held.since));
        Some(held.submit)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, now: Instant) {
        let passed = |since: Instant| self.passed.is_some_and(|passed| passed > since + DISORDER);
        while let Some((since, id)) = self.since.front()
            && (now.saturating_duration_since(*since) > LONGEST || passed(*since) || !self.submits.contains_key(id))
        {
            if let Some(held) = self.submits.remove(id) {
                self.bytes -= held.size;
            }
            self.since.pop_front();
        }
    }
}

/// The same, without the message that it is a part of: its bytes are slices of that.
fn on_its_own(submit: Submit) -> Submit {
    let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    let (job_id, payload, body_hash) = (own(&submit.job_id), own(&submit.payload), own(&submit.body_hash));
    Submit { job_id, payload, body_hash, ..submit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(bytes: usize) -> Submit {
        Submit { payload: vec![0; bytes].into(), ..Default::default() }
    }

    #[test]
    fn it_is_given_back_once_and_bounded_in_bytes_and_time() {
        let (kept, now) = (Kept::default(), Instant::now());
        let ids: Vec<JobId> = (0..3).map(JobId::mint).collect();
        for id in &ids {
            kept.keep(*id, submit(MOST_BYTES / 2 - 2 * EACH), now);
        }
        assert!(kept.take(ids[2]).is_none(), "no room for a third");
        assert!(kept.take(ids[0]).is_some() && kept.take(ids[0]).is_none());
        kept.keep(ids[2], submit(1), now);
        assert!(kept.take(ids[2]).is_some(), "there is room again");

        kept.keep(ids[0], submit(1), now + LONGEST + Duration::from_secs(1));
        assert!(kept.take(ids[1]).is_none(), "it has waited for too long");
        let held = || kept.inner().bytes;
        assert_eq!(held(), encoded_len(&submit(1)) + EACH);
        kept.forget(now + 3 * LONGEST);
        assert_eq!(held(), 0, "and nothing new came since");
    }

    #[test]
    fn all_of_a_submit_counts_and_it_holds_no_message() {
        let message = Bytes::from(vec![7; 100_000]);
        let spec = muster_wire::v1::Spec { topic: "t".repeat(5_000), ..Default::default() };
        let part = Submit { payload: message.slice(10..20), spec: Some(spec), ..Default::default() };
        let (kept, id) = (Kept::default(), JobId::mint(1));
        kept.keep(id, part.clone(), Instant::now());
        assert!(kept.inner().bytes > 5_000);
        drop(part.payload);
        assert!(message.is_unique(), "a slice would hold all of it");
        assert_eq!(kept.take(id).unwrap().payload.as_ref(), [7; 10]);
    }

    #[test]
    fn who_was_passed_by_was_released_by_somebody_else() {
        let (kept, now) = (Kept::default(), Instant::now());
        let ids: Vec<JobId> = (0..4).map(JobId::mint).collect();
        for (n, id) in ids.iter().enumerate() {
            kept.keep(*id, submit(1), now + n as u32 * DISORDER);
        }
        assert!(kept.take(ids[2]).is_some());
        kept.keep(JobId::mint(9), submit(1), now + 4 * DISORDER);
        assert!(kept.take(ids[0]).is_none() && kept.take(ids[1]).is_some(), "give or take a second");
    }

    #[test]
    fn what_was_taken_leaves_nothing_behind() {
        let (kept, now) = (Kept::default(), Instant::now());
        for n in 0..1_000 {
            let id = JobId::mint(n as u8);
            kept.keep(id, submit(10), now);
            assert!(kept.take(id).is_some());
        }
        let inner = kept.inner();
        assert!(inner.since.len() <= 1 && inner.submits.is_empty() && inner.bytes == 0);
    }
}
