//! The concurrency of workflows: how many runs of a workflow, with one value of its key, go on at once.
//!
//! A run that asks for a slot is stored as queued; the owner of its shard takes the slot and starts it. Only where the
//! workflow says `reject`, the slot is taken before the run is stored, because the answer depends on it. A run frees its
//! slot with its last command.

use std::time::Duration;

use muster_domain::{RunId, Time, WorkflowName};
use muster_engine::{
    definition::WhenFull,
    run::{Glance, SlotWish},
};
use muster_store::{RunSlot, RunSlotTaken, StoreError};

use crate::{Ask, Kept, OperateRefused, Runs, RunsError, StartRefused};

/// How long a slot may be held by a start that has not stored its run yet.
const UNSTORED_FOR: Duration = Duration::from_secs(2);

/// What became of a run's request for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// It needs none, or holds it.
    Held,
    /// It waits for one.
    Waits,
}

impl Runs {
    /// Whether a new run begins at once. Notes in the run which slot it asks for.
    pub(crate) async fn may_begin(&self, kept: &mut Kept) -> Result<bool, StartRefused> {
        let Some(wish) = kept.run.slot_wish().map_err(StartRefused::Key)? else { return Ok(true) };
        kept.run.hold_slot(wish.key.clone());
        if wish.when_full != WhenFull::Reject {
            return Ok(false);
        }
        let Some(slot) = slot_of(kept) else { return Ok(true) };
        for tries in 0..2 {
            let RunSlotTaken::Full(holders) = self.flow.store.take_run_slot(&slot, wish.max, None).await? else {
                return Ok(true);
            };
            let freed = self.free_ended(&slot, &holders).await? || self.free_unstored(&slot, &holders).await?;
            if tries > 0 || !freed {
                break;
            }
        }
        let SlotWish { key, max, .. } = wish;
        Err(StartRefused::Full { key, max })
    }

    /// Takes the slot of a queued run, or makes it wait for one. Where the workflow says so, one run is cancelled for it:
    /// the oldest of those that wait, or else the oldest. Saves which one, so that it stays one.
    pub async fn take_slot(&self, kept: &mut Kept) -> Result<Slot, RunsError> {
        let concurrency = kept.run.plan().definition().concurrency.as_ref();
        let (Some(slot), Some(concurrency)) = (slot_of(kept), concurrency) else { return Ok(Slot::Held) };
        let since = kept.run.about().created;
        let taken = self.flow.store.take_run_slot(&slot, concurrency.max, Some(since)).await?;
        let RunSlotTaken::Full(holders) = taken else {
            muster_flow::failpoint!("run.slot.after_take");
            // Two slots may have become free at once: then both named this run as the next one.
            if let Some(next) = self.flow.store.waiting_runs(&slot).await?.first() {
                self.wake(*next, Duration::ZERO).await?;
            }
            return Ok(Slot::Held);
        };
        if self.free_ended(&slot, &holders).await? || self.free_unstored(&slot, &holders).await? {
            return Box::pin(self.take_slot(kept)).await;
        }
        if concurrency.when_full == WhenFull::CancelOldest
            && let Some(oldest) = self.makes_room(kept, &slot, &holders).await?
        {
            let ask = Ask::Cancel { compensate: true, reason: format!("the newer run {} needs its slot", kept.id) };
            match self.operate(&slot.tenant, oldest, &format!("slot-{}", kept.id), &ask).await {
                Ok(_) | Err(OperateRefused::Refused { .. } | OperateRefused::NotFound) => {}
                Err(OperateRefused::Fault(fault)) => return Err(fault),
            }
        }
        Ok(Slot::Waits)
    }

    /// Frees the slot of a run, or takes it out of those that wait, and makes the next run due.
    pub async fn free_slot(&self, kept: &Kept) -> Result<(), StoreError> {
        let Some(slot) = slot_of(kept) else { return Ok(()) };
        let next = self.flow.store.free_run_slot(&slot).await?;
        muster_flow::failpoint!("run.slot.after_free");
        match next {
            Some(next) => self.wake(next, Duration::ZERO).await,
            None => Ok(()),
        }
    }

    /// The run that makes room for a newer one: one that waits before it, or else the one that was admitted first.
    async fn makes_room(&self, kept: &mut Kept, slot: &RunSlot, holders: &[RunId]) -> Result<Option<RunId>, RunsError> {
        if let Some(known) = kept.notes.room() {
            return Ok(Some(known));
        }
        let waiting = self.flow.store.waiting_runs(slot).await?;
        let before = waiting.iter().take_while(|run| **run != kept.id).next();
        let Some(oldest) = before.or(holders.first()).copied() else { return Ok(None) };
        kept.notes.take_room_of(oldest);
        if !self.save(kept).await? {
            return Err(RunsError::Contended(kept.id));
        }
        muster_flow::failpoint!("run.slot.after_choice");
        Ok(Some(oldest))
    }

    /// Frees slots of runs that ended and have nothing left to do: a failover may have brought them back. True if one was
    /// freed.
    async fn free_ended(&self, slot: &RunSlot, holders: &[RunId]) -> Result<bool, StoreError> {
        let names = Glance::FIELDS.map(str::as_bytes);
        let mut freed = false;
        for (run, stored) in holders.iter().zip(self.flow.store.read_runs(holders, &names).await) {
            let Some(stored) = stored? else { continue };
            let [about, head] = names.map(|name| stored.fields.get(name).map(AsRef::as_ref));
            let ended = Glance::read(about, head).is_ok_and(|glance| glance.ended != Time::NONE);
            if ended && self.flow.store.home_of(*run).await?.is_none() {
                self.flow.store.free_run_slot(&RunSlot { run: *run, ..slot.clone() }).await?;
                freed = true;
            }
        }
        Ok(freed)
    }

    /// Frees slots of starts that died before they stored their runs. True if one was freed.
    async fn free_unstored(&self, slot: &RunSlot, holders: &[RunId]) -> Result<bool, StoreError> {
        let mut absent = Vec::new();
        for (run, stored) in holders.iter().zip(self.flow.store.have_runs(holders).await) {
            if !stored? {
                absent.push(*run);
            }
        }
        if absent.is_empty() {
            return Ok(false);
        }
        tokio::time::sleep(UNSTORED_FOR).await;
        let mut freed = false;
        for (run, stored) in absent.iter().zip(self.flow.store.have_runs(&absent).await) {
            if !stored? {
                self.flow.store.free_run_slot(&RunSlot { run: *run, ..slot.clone() }).await?;
                freed = true;
            }
        }
        Ok(freed)
    }
}

/// The slot that a run holds or asks for.
pub(crate) fn slot_of(kept: &Kept) -> Option<RunSlot> {
    let about = kept.run.about();
    let workflow = WorkflowName::parse(&about.workflow).ok()?;
    Some(RunSlot { tenant: about.tenant.clone(), workflow, key: about.slot.clone()?, run: kept.id })
}
