//! Slots of a workflow's concurrency: one sorted set per workflow and value of the key, with the runs that hold a slot and
//! the runs that wait for one, by the scripts of the slots of jobs.
//!
//! No more than `max` runs hold a slot of a set. Each call is one script on one key and may be repeated. Time alone never
//! frees a slot: a run frees it when it ends. The workflow service decides what a full set means.

use muster_domain::{RunId, Tenant, Time, WorkflowName, slot::SLOT_LOOK, time::micros};

use crate::{Store, StoreError, keys, router::Command, script::list, scripts};

/// A slot that a run holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSlot {
    /// The tenant that owns the run.
    pub tenant: Tenant,
    /// The workflow.
    pub workflow: WorkflowName,
    /// The value of the key; empty without one.
    pub key: String,
    /// The run.
    pub run: RunId,
}

/// The result of a request for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunSlotTaken {
    /// The run holds a slot, by this request or by an earlier one.
    Held,
    /// These runs hold all slots (at most 64 are named), the one that was admitted first first.
    Full(Vec<RunId>),
}

fn run_of(member: &[u8]) -> Option<RunId> {
    std::str::from_utf8(member).ok()?.parse().ok()
}

impl Store {
    /// Requests a slot for a run. If all are taken, the run waits for one, in the order of `since`, unless that is
    /// none.
    pub async fn take_run_slot(
        &self,
        slot: &RunSlot,
        max: u32,
        since: Option<Time>,
    ) -> Result<RunSlotTaken, StoreError> {
        // Negative, and lowest for the run that was stored first.
        let turn = since.map_or(0, |since| i64::try_from(since.0).unwrap_or(i64::MAX / 4) - (1 << 52));
        let call = scripts::slot::Take {
            key: keys::run_slots(&slot.tenant, &slot.workflow, &slot.key),
            member: slot.run.to_string().into_bytes(),
            max: max.into(),
            look: micros(SLOT_LOOK),
            turn,
        };
        let reply = self.run(call).await?;
        Ok(match reply.outcome {
            1 | 2 => RunSlotTaken::Held,
            _ => RunSlotTaken::Full(reply.holders.chunks(2).filter_map(|pair| run_of(pair.first()?)).collect()),
        })
    }

    /// The runs that wait for a slot, the first one first; at most 64.
    pub async fn waiting_runs(&self, slot: &RunSlot) -> Result<Vec<RunId>, StoreError> {
        let key = keys::run_slots(&slot.tenant, &slot.workflow, &slot.key);
        let mut cmd = redis::cmd("ZRANGEBYSCORE");
        cmd.arg(key.as_bytes()).arg("-inf").arg("(0").arg("LIMIT").arg(0).arg(64);
        let members = list(self.router().call(Command::plain(cmd)).await?)?;
        Ok(members.iter().filter_map(|member| run_of(member)).collect())
    }

    /// Frees the slot of a run, or takes the run out of those that wait. Returns the run that waits longest.
    pub async fn free_run_slot(&self, slot: &RunSlot) -> Result<Option<RunId>, StoreError> {
        let call = scripts::slot::Free {
            key: keys::run_slots(&slot.tenant, &slot.workflow, &slot.key),
            member: slot.run.to_string().into_bytes(),
            seen: Vec::new(),
        };
        Ok(run_of(&self.run(call).await?.next))
    }
}
