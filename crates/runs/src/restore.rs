//! Operations on runs that are read from the bus again, after a primary may have lost their saves.
//!
//! A start creates its run again, as it was when it was answered; other operations are applied with the time that they
//! had, after the ends of jobs that were before them. An operation whose save was not lost changes nothing, because a
//! run remembers the ids of its operations. Repeating is harmless. The caller reads a run's operations in the order in
//! which they were published, once the jobs that Redis lost are there again.

use std::time::Duration;

use muster_domain::{RunId, Tenant, Time, WorkflowName};
use muster_engine::run::{About, Event, Outcome, What};
use muster_wire::v1;

use crate::{Ask, Kept, Rerun, RerunRefused, Runs, RunsError, Start, StartBody, StartRefused, asks::START};

/// How often a save is tried again after another process saved the run.
const TRIES: u32 = 10;

/// What became of an operation that was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It was lost, and is there again.
    Applied,
    /// It was not lost, or there is nothing that it would change.
    Known,
    /// It cannot be applied: it is no operation, or what it needs is gone.
    Impossible,
}

impl Runs {
    /// Applies an operation that was read again.
    pub async fn restore(&self, op: &v1::RunOp) -> Result<Restored, RunsError> {
        let (Some(id), Ok(tenant)) = (RunId::from_slice(&op.run_id), Tenant::parse(&op.tenant)) else {
            return Ok(Restored::Impossible);
        };
        let at = Time(op.at);
        if op.kind == START {
            let Ok(body) = serde_json::from_slice(&op.body) else { return Ok(Restored::Impossible) };
            return self.restore_start(id, tenant, body, at).await;
        }
        let Ok(ask) = serde_json::from_slice::<Ask>(&op.body) else { return Ok(Restored::Impossible) };
        for _ in 0..TRIES {
            let Some((mut kept, _)) = self.read(id).await? else { return Ok(Restored::Impossible) };
            if kept.run.about().tenant != tenant {
                return Ok(Restored::Impossible);
            }
            let at = at.max(kept.run.now());
            let ends = self.job_ends(&kept, &[]).await?;
            kept.apply_all(ends.events.into_iter().filter(|end| end.at <= at).collect())?;
            kept.pass_time(at)?;
            let outcome = kept.apply(&Event { at, what: ask.event(&op.id) })?.outcome;
            if outcome != Outcome::Applied && !kept.is_changed() {
                return Ok(Restored::Known);
            }
            self.flow.store.forward_homes(&[(id, Duration::ZERO)]).await?;
            muster_flow::failpoint!("run.restore.before_save");
            if self.save(&mut kept).await? {
                self.wake(id, Duration::ZERO).await?;
                return Ok(Restored::Applied);
            }
        }
        Err(RunsError::Contended(id))
    }

    async fn restore_start(
        &self,
        id: RunId,
        tenant: Tenant,
        body: StartBody,
        created: Time,
    ) -> Result<Restored, RunsError> {
        if self.version(id).await?.is_some() {
            return Ok(Restored::Known);
        }
        let Some(mut kept) = self.started_anew(id, tenant, body, created).await? else {
            return Ok(Restored::Impossible);
        };
        let begins = match self.may_begin(&mut kept).await {
            Ok(begins) => begins,
            // It was admitted before; now it waits for a slot like any other.
            Err(StartRefused::Full { .. }) => false,
            Err(StartRefused::Fault(fault)) => return Err(fault),
            Err(_) => return Ok(Restored::Impossible),
        };
        if begins {
            kept.apply(&Event { at: created, what: What::Start })?;
        }
        muster_flow::failpoint!("run.restore.before_create");
        let made = self.create(&mut kept).await?;
        self.wake(id, Duration::ZERO).await?;
        Ok(if made { Restored::Applied } else { Restored::Known })
    }

    /// The run that a start made, queued; none if its definition or the run that it repeats is gone.
    async fn started_anew(
        &self,
        id: RunId,
        tenant: Tenant,
        body: StartBody,
        created: Time,
    ) -> Result<Option<Kept>, RunsError> {
        let Ok(name) = WorkflowName::parse(&body.workflow) else { return Ok(None) };
        let Some(workflow) = self.workflow(&tenant, &name, Some(body.version)).await? else { return Ok(None) };
        let hash = unhex(&body.hash);
        let old = match body.rerun.as_ref() {
            None => None,
            Some(rerun) => {
                let (Ok(of), Some(again)) = (rerun.of.parse::<RunId>(), rerun.again()) else { return Ok(None) };
                let Some((mut old, _)) = self.read(of).await? else { return Ok(None) };
                // Redis may have forgotten the old run's end too.
                let ends = self.job_ends(&old, &[]).await?;
                old.apply_all(ends.events)?;
                Some((old, again))
            }
        };
        let start = Start {
            id,
            tenant,
            workflow: name,
            version: Some(body.version),
            input: body.input.clone(),
            labels: body.labels,
            principal: body.principal.clone(),
            hash,
            topics: body.topics.clone(),
            parent: body.parent,
            depth: body.depth,
        };
        let Some((old, again)) = old else {
            let about = |about: &About| About { created, ..about.clone() };
            return Ok(Some(self.unstored_as(&start, &workflow, about)));
        };
        let Start { version, topics, .. } = start;
        let rerun = Rerun { id, again, version, input: body.input, principal: body.principal, topics, hash };
        // Its steps that run again have new jobs, whose ids do not depend on the time.
        match self.plan_rerun(&old, &rerun).await {
            Ok(plan) => Ok(Some(plan.kept)),
            Err(RerunRefused::Start(StartRefused::Fault(fault))) if fault.is_retryable() => Err(fault),
            Err(_) => Ok(None),
        }
    }
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut hash = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (n, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_its_text() {
        assert_eq!(unhex("000102030405060708090a0b0c0d0eff").map(|hash| (hash[1], hash[15])), Some((1, 255)));
        for bad in ["", "00", "zz0102030405060708090a0b0c0d0e0f", "é00102030405060708090a0b0c0d0e0"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
