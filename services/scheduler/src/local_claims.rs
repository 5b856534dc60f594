//! Jobs that this replica has enqueued and keeps in memory. Their entries are claimed from the start, so that their
//! release needs no claim and no read.
//!
//! Knows: the entries of a route that this replica has claimed, in their order, and their submits. Promises: a limit on
//! the bytes of all routes together; each submit is a copy, so that it does not keep a whole message in memory; no
//! entry is handed out whose claim is about to expire, because then any replica may release it. A kept submit may be
//! out of date, for instance after a cancel. That does no harm, because a start compares the offer's version with the
//! record's. Leaves to others: the claims themselves (`store`), and the choice of jobs (`dispatch`).

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

/// Most bytes of all kept submits; each counts with this much for the rest of its entry.
const MOST_BYTES: usize = 32 * 1024 * 1024;
const EACH: usize = 512;
/// A claim that ends within this time is left to expire: an offer and a removal must fit before its end.
const MARGIN: Duration = Duration::from_millis(500);
/// Pause after a look that found no unclaimed entry, while there are local claims to release.
const LOOK: Duration = Duration::from_millis(20);

/// The memory that a replica has for kept submits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

/// A reserved part of the memory; given back when dropped.
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

/// Copies the bytes, which are slices of the whole message.
fn on_its_own(submit: Submit) -> Submit {
    let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    let (job_id, payload, body_hash) = (own(&submit.job_id), own(&submit.payload), own(&submit.body_hash));
    Submit { job_id, payload, body_hash, ..submit }
}

/// The local claims of one route.
#[derive(Debug, Default)]
pub(crate) struct LocalClaims(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held: VecDeque<LocalClaim>,
    /// When the last look found no unclaimed entry.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct LocalClaim {
    entry: QueueEntry,
    copy: Copied,
    until: Instant,
}

impl LocalClaims {
    /// Keeps an entry whose claim ends at `claimed_until`.
    pub(crate) fn keep(&self, entry: QueueEntry, copy: Copied, claimed_until: Instant) {
        let until = claimed_until.checked_sub(MARGIN).unwrap_or(claimed_until);
        self.inner().held.push_back(LocalClaim { entry, copy, until });
    }

    /// Hands out the oldest entries, at most `most`.
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

    /// Since when the oldest entry waits.
    pub(crate) fn first(&self, now: Instant) -> Option<Time> {
        let mut inner = self.inner();
        inner.forget(now);
        inner.held.front().map(|held| held.entry.since)
    }

    /// Forgets the oldest entries while their claims are about to expire.
    pub(crate) fn forget(&self, now: Instant) {
        self.inner().forget(now);
    }

    /// Hands out everything, because this replica stops. Entries with an expired claim may belong to another replica,
    /// so they are left out.
    pub(crate) fn give_up(&self, now: Instant) -> Vec<QueueEntry> {
        self.take(usize::MAX, now).into_iter().map(|(entry, _)| entry).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().held.len()
    }

    /// Notes that a look found no unclaimed entry.
    pub(crate) fn found_nothing(&self, now: Instant) {
        self.inner().looked = Some(now);
    }

    /// Notes that an entry was enqueued without a claim.
    pub(crate) fn look_again(&self) {
        self.inner().looked = None;
    }

    /// Whether to look again for unclaimed entries.
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
