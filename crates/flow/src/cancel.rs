//! Cancels a job. The cancel is applied in Redis first, so that nothing can start or settle the job any more. Then the
//! job's home is forwarded to now, its worker is notified, the effects of the end are done, and the cancel is published
//! for replay.
//!
//! The home is forwarded twice. The first time is before the cancel: if the process dies right after the cancel, a
//! check finds the end at once. The second time is after the cancel: a check in between finds a job that has not ended,
//! and moves the home to a later time, as far as such a job may wait.
//!
//! A run may cancel a job that it has not submitted yet, or whose submit is under way. Such a job is created as cancelled,
//! in the order of a submit: home and list entry, record, effects, message for replay.

use std::time::Duration;

use muster_bus::subjects;
use muster_domain::{
    Event, JobId, Outcome, Tenant, audit,
    job::{EndedBy, PENDING_LOOK},
};
use muster_store::{Fields, NewJob, Record, Step, StoreError};
use muster_wire::{Body, v1};

use crate::{BUS_PATIENCE, End, Flow, failpoint};

/// The result of a cancel.
#[derive(Clone, Debug)]
pub enum Cancelled {
    /// Cancelled by this call.
    Now(Box<Record>),
    /// An earlier call cancelled the job; asking again is fine.
    Before(Box<Record>),
    /// The job ended in another way.
    EndedOtherwise(Box<Record>),
    /// The tenant has no such job.
    NotFound,
}

impl Flow {
    /// Cancels a job. Repeating finishes what an earlier call left undone.
    pub async fn cancel(&self, tenant: &Tenant, id: JobId, reason: &str) -> Result<Cancelled, StoreError> {
        let Some(mut record) = self.store.read_one(id, Fields::NONE).await? else { return Ok(Cancelled::NotFound) };
        if record.deleted || record.spec.tenant != *tenant {
            return Ok(Cancelled::NotFound);
        }
        if !record.head.state().is_end() {
            self.store.forward_homes(&[(id, Duration::ZERO)]).await?;
        }
        failpoint!("cancel.before_apply");
        let step = Step { note: reason.to_owned(), ..Step::new(id, Event::Cancel, 0) };
        let moved = self.store.apply_one(step).await?;
        let Some(head) = moved.head else { return Ok(Cancelled::NotFound) };
        let read = std::mem::replace(&mut record.head, head);
        if moved.outcome == Outcome::Illegal {
            return Ok(Cancelled::EndedOtherwise(Box::new(record)));
        }
        failpoint!("cancel.after_apply");
        if moved.outcome == Outcome::Applied {
            self.store.forward_homes(&[(id, Duration::ZERO)]).await?;
        }
        failpoint!("cancel.after_forward");
        self.tell_retries(&record, read.version).await?;
        let was_running = record.head.ended_by() == Some(EndedBy::Cancel);
        let mut end = End::of(&record, moved.outcome == Outcome::Applied);
        end.tell = record.head.last_worker.clone().filter(|_| was_running);
        self.finish(vec![end]).await?;
        if moved.outcome == Outcome::Already {
            return Ok(Cancelled::Before(Box::new(record)));
        }
        self.keep_cancel(v1::Cancel {
            job_id: id.as_bytes().to_vec().into(),
            tenant: tenant.to_string(),
            reason: reason.into(),
            created_at: record.head.created_at.0,
            ..v1::Cancel::default()
        })
        .await;
        Ok(Cancelled::Now(Box::new(record)))
    }

    /// Cancels a job of a run that may not have been submitted. If there is no such job, creates it as cancelled, so that
    /// a later submit of this id finds it ended: the caller's id must be derived, and never be used for another job. The
    /// payload is not stored. Repeating finishes what an earlier call left undone.
    pub async fn cancel_or_create(&self, mut job: NewJob, reason: &str) -> Result<Cancelled, StoreError> {
        let (id, tenant) = (job.id, job.spec.tenant.clone());
        let mut done = self.cancel(&tenant, id, reason).await?;
        if matches!(done, Cancelled::NotFound) {
            self.store
                .prepare(std::slice::from_mut(&mut job), PENDING_LOOK)
                .await
                .into_iter()
                .collect::<Result<(), _>>()?;
            failpoint!("cancel.after_home");
            let moved = self.store.forestall(&job, Event::Cancel, reason).await?;
            failpoint!("cancel.after_create");
            // The effects of the end, of this call's or of the submit's that was faster. The home was set as for a new
            // job.
            self.store.forward_homes(&[(id, Duration::ZERO)]).await?;
            done = match (self.cancel(&tenant, id, reason).await?, moved.outcome) {
                (Cancelled::Before(record), Outcome::Applied) => Cancelled::Now(record),
                (other, _) => other,
            };
        }
        if let Cancelled::Now(record) | Cancelled::Before(record) = &done {
            self.keep_cancel(v1::Cancel {
                job_id: id.as_bytes().to_vec().into(),
                tenant: tenant.to_string(),
                reason: reason.into(),
                created_at: record.head.created_at.0,
                spec: Some((&job.spec).into()),
                body_hash: job.body_hash.map(|hash| hash.to_vec().into()).unwrap_or_default(),
            })
            .await;
        }
        Ok(done)
    }

    /// Publishes a cancel for replay only: Redis is the source of truth, so it does not matter if the bus is down.
    async fn keep_cancel(&self, item: v1::Cancel) {
        let body = Body::Cancel(v1::CancelGroup { items: vec![item] });
        let _ = self.bus.publish_within(&subjects::cancel(), None, None, body, BUS_PATIENCE).await;
    }

    /// Writes the audit entries of retries that the reconciler did not write because it died: no later check will find
    /// these retries.
    async fn tell_retries(&self, record: &Record, read: u32) -> Result<(), StoreError> {
        if record.head.fence == 0 {
            return Ok(());
        }
        let again =
            if record.head.version > read + 1 { self.store.read_one(record.id, Fields::NONE).await? } else { None };
        let story = again.as_ref().unwrap_or(record);
        // A history that was read before the cancel ends one version earlier.
        let mut head = record.head.clone();
        if again.is_none() {
            head.version = read;
        }
        let acts = audit::retries(record.id, &record.spec, &head, &story.history);
        if !acts.is_empty() {
            self.store.audit(&acts).await?;
            failpoint!("cancel.after_audit");
        }
        Ok(())
    }
}
