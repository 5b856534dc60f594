//! Jobs that this replica has put in line itself, and keeps: their entries are claimed from the first moment on, so
//! that their release asks nobody and reads nothing.
//!
//! Knows: which entries of a route are this replica's to release, in their order, and their submits. Promises: so many
//! bytes at most in all routes together, each submit on its own, so that no message stays for a part of it; nothing is
//! handed out whose claim is about to lapse, because then anybody may release it. What is kept may be out of date,
//! because people cancel: that harms nobody, because whoever starts an offer compares its version with the record's.
//! Leaves to others: the claims themselves (`store`), and who is put in line so (`dispatch`).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use muster_domain::Time;
use muster_store::QueueEntry;
use muster_wire::{encoded_len, v1::Submit};

/// Most bytes of submits, and so much for the rest of each.
const MOST_BYTES: usize = 32 * 1024 * 1024;
const EACH: usize = 512;
/// A claim that ends within this is left to lapse: an offer and a removal have to fit before its end.
const MARGIN: Duration = Duration::from_millis(500);
/// What others put in line is looked for this often while there is enough of our own to release.
const LOOK: Duration = Duration::from_millis(20);

/// The room that a replica has for what it keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

/// A part of it; given back when dropped.
#[derive(Debug)]
struct Part {
    of: Memory,
    size: usize,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.size, Ordering::AcqRel);
    }
}

/// A submit in a replica's memory.
#[derive(Debug)]
pub(crate) struct Copied {
    submit: Submit,
    _part: Part,
}

impl Memory {
    /// A copy of this submit; none if there is no room.
    pub(crate) fn copy(&self, submit: Submit) -> Option<Copied> {
        let size = encoded_len(&submit) + EACH;
        let fits = |bytes: usize| bytes.checked_add(size).filter(|sum| *sum <= MOST_BYTES);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Copied { submit: on_its_own(submit), _part: Part { of: self.clone(), size } })
    }
}

/// The same, without the message that it is a part of: its bytes are slices of that.
fn on_its_own(submit: Submit) -> Submit {
    let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    let (job_id, payload, body_hash) = (own(&submit.job_id), own(&submit.payload), own(&submit.body_hash));
    Submit { job_id, payload, body_hash, ..submit }
}

/// What is kept of one route.
#[derive(Debug, Default)]
pub(crate) struct LocalClaims(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held: VecDeque<Held>,
    /// When nothing was found in line that anybody could claim.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Held {
    entry: QueueEntry,
    copy: Copied,
    until: Instant,
}

impl LocalClaims {
    /// Keeps an entry whose claim ends then.
    pub(crate) fn keep(&self, entry: QueueEntry, copy: Copied, claimed_until: Instant) {
        let until = claimed_until.checked_sub(MARGIN).unwrap_or(claimed_until);
        self.inner().held.push_back(Held { entry, copy, until });
    }

    /// Hands out the oldest, at most so many.
    pub(crate) fn take(&self, most: usize, now: Instant) -> Vec<(QueueEntry, Submit)> {
        let mut inner = self.inner();
        let mut taken = Vec::with_capacity(most.min(inner.held.len()));
        while taken.len() < most
            && let Some(held) = inner.held.pop_front()
        {
            if held.until > now {
                taken.push((held.entry, held.copy.submit));
            }
        }
        taken
    }

    /// Since when the first of them waits.
    pub(crate) fn first(&self, now: Instant) -> Option<Time> {
        let mut inner = self.inner();
        inner.forget(now);
        inner.held.front().map(|held| held.entry.since)
    }

    /// Forgets those whose claims lapse.
    pub(crate) fn forget(&self, now: Instant) {
        self.inner().forget(now);
    }

    /// Everything, because this replica stops. What lapses may be another's by now.
    pub(crate) fn give_up(&self, now: Instant) -> Vec<QueueEntry> {
        self.take(usize::MAX, now).into_iter().map(|(entry, _)| entry).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.inner().held.len()
    }

    /// Nothing was found in line that anybody could claim.
    pub(crate) fn found_nothing(&self, now: Instant) {
        self.inner().looked = Some(now);
    }

    /// Something was put in line for anybody.
    pub(crate) fn look_again(&self) {
        self.inner().looked = None;
    }

    /// Whether somebody should look again for what anybody can claim. Where little is started nobody waits for that.
    pub(crate) fn should_look(&self, now: Instant) -> bool {
        self.inner().looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, now: Instant) {
        while self.held.front().is_some_and(|held| held.until <= now) {
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::{JobId, Line, Priority, Tenant};

    use super::*;

    const CLAIM: Duration = Duration::from_secs(5);

    fn submit(bytes: usize) -> Submit {
        Submit { payload: vec![0; bytes].into(), ..Default::default() }
    }

    fn entry(n: u8) -> QueueEntry {
        let line = Line::named("t", "").unwrap();
        let (tenant, job) = (Tenant::default(), JobId::mint(n));
        QueueEntry { tenant, line, priority: Priority::Normal, job, version: 1, since: Time(n.into()), limited: false }
    }

    #[test]
    fn what_is_kept_comes_back_once_in_its_order_until_its_claim_lapses() {
        let (memory, claims, now) = (Memory::default(), LocalClaims::default(), Instant::now());
        let entries: Vec<_> = (0..4).map(entry).collect();
        for (n, entry) in entries.iter().enumerate() {
            claims.keep(entry.clone(), memory.copy(submit(10)).unwrap(), now + CLAIM * (n as u32 + 1));
        }
        let jobs = |taken: Vec<(QueueEntry, Submit)>| taken.into_iter().map(|(entry, _)| entry).collect::<Vec<_>>();
        assert_eq!(jobs(claims.take(2, now)), entries[..2]);
        assert_eq!(jobs(claims.take(9, now + CLAIM * 3)), entries[3..], "the third is anybody's by then");
        assert_eq!(claims.len(), 0);
        assert_eq!(memory.0.load(Ordering::Acquire), 0, "and nothing is left of them");
        claims.keep(entries[0].clone(), memory.copy(submit(10)).unwrap(), now + CLAIM);
        claims.forget(now + CLAIM - MARGIN);
        assert_eq!(claims.len(), 0, "also where nobody releases");
        claims.keep(entries[1].clone(), memory.copy(submit(10)).unwrap(), now + CLAIM);
        assert_eq!(claims.first(now), Some(entries[1].since));
        assert!(claims.first(now + CLAIM).is_none());
        claims.keep(entries[1].clone(), memory.copy(submit(10)).unwrap(), now + CLAIM);
        assert_eq!(claims.give_up(now), entries[1..2]);
    }

    #[test]
    fn all_of_a_submit_counts_and_it_holds_no_message() {
        let message = Bytes::from(vec![7; 100_000]);
        let spec = muster_wire::v1::Spec { topic: "t".repeat(5_000), ..Default::default() };
        let part = Submit { payload: message.slice(10..20), spec: Some(spec), version: 3, ..Default::default() };
        let memory = Memory::default();
        let copy = memory.copy(part.clone()).unwrap();
        assert_eq!(copy.submit, part);
        assert!(memory.0.load(Ordering::Acquire) > 5_000);
        drop(part);
        assert!(message.is_unique(), "a slice would hold all of it");

        let large = submit(MOST_BYTES / 2);
        let first = memory.copy(large.clone());
        assert!(first.is_some() && memory.copy(large.clone()).is_none(), "no room for a second");
        drop((first, copy));
        assert!(memory.copy(large).is_some(), "there is room again");
    }

    #[test]
    fn others_are_looked_for_now_and_then() {
        let (claims, now) = (LocalClaims::default(), Instant::now());
        assert!(claims.should_look(now));
        claims.found_nothing(now);
        assert!(!claims.should_look(now + LOOK / 2) && claims.should_look(now + LOOK));
        claims.look_again();
        assert!(claims.should_look(now));
    }
}
