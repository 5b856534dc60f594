//! Jobs that Redis forgot, made again from the submits that the bus kept.
//!
//! As a submit: told in the audit log, then homes and places, then records, then one message. A job whose
//! record or stub is there is left alone, so any of it may be repeated. Attempts that were begun are
//! forgotten with the record: the job starts anew.

use std::{collections::HashSet, time::Duration};

use muster_domain::{Act, JobSpec, Time, audit, job::PENDING_LOOK};
use muster_store::{KEEP_STUB, NewJob, StoreError, Submitted};
use muster_wire::{job_id, v1};

use crate::{Flow, failpoint, submit::sooner};

/// What became of submits that were read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recreated {
    /// Jobs that were made again.
    pub made: u64,
    /// Why some could not be looked at or made: they must be read again.
    pub fault: Option<StoreError>,
}

/// The job that a submit tells of; none if it does not say enough. An earlier version did not, nor did it
/// leave a stub where it deleted a job.
fn job_of(submit: &v1::Submit) -> Option<(NewJob, Time)> {
    let (id, accepted) = (job_id(&submit.job_id).ok()?, Time(submit.created_at).some()?);
    let spec = JobSpec::try_from(submit.spec.clone()?).ok()?;
    let body_hash = match submit.body_hash.is_empty() {
        true => None,
        false => Some(<[u8; 16]>::try_from(submit.body_hash.as_ref()).ok()?),
    };
    Some((NewJob { id, spec, payload: submit.payload.clone(), body_hash, place: None, at: None }, accepted))
}

impl Flow {
    /// Makes those of these jobs again of which Redis has nothing. Repeating is harmless. Not those that became
    /// pending so long ago that they may have ended and been deleted since: Redis forgets what was written last.
    pub async fn recreate(&self, submits: &[v1::Submit]) -> Recreated {
        let mut done = Recreated::default();
        let now = self.store.now();
        let submits = submits.iter().filter(|submit| now.since(Time(submit.pending_since)) < KEEP_STUB);
        let submits: Vec<_> = submits.collect();
        let ids: Vec<_> = submits.iter().filter_map(|submit| job_id(&submit.job_id).ok()).collect();
        let mut gone = HashSet::new();
        for (id, answer) in ids.iter().zip(self.store.are_gone(&ids).await) {
            match answer {
                Ok(true) => _ = gone.insert(*id),
                Ok(false) => {}
                Err(fault) => done.fault = Some(fault),
            }
        }
        // Each once, however often it was published.
        let is_next = |submit: &&&v1::Submit| job_id(&submit.job_id).is_ok_and(|id| gone.remove(&id));
        let forgotten: Vec<_> = submits.iter().filter(is_next).filter_map(|submit| job_of(submit)).collect();
        if !forgotten.is_empty() {
            self.make_again(forgotten, &mut done).await;
        }
        done
    }

    async fn make_again(&self, mut forgotten: Vec<(NewJob, Time)>, done: &mut Recreated) {
        let now = self.store.now();
        let acts: Vec<Act> = forgotten.iter().map(|(job, _)| audit::of_recreation(job.id, &job.spec, now)).collect();
        if let Err(fault) = self.store.audit(&acts).await {
            done.fault = Some(fault);
            return;
        }
        failpoint!("reread.after_audit");
        let made = self.store.recreate(&mut forgotten, PENDING_LOOK).await;
        failpoint!("reread.after_record");
        let (mut jobs, mut heads, mut nearer) = (Vec::new(), Vec::new(), Vec::new());
        for ((job, _), outcome) in forgotten.into_iter().zip(made) {
            match outcome {
                Ok(Submitted::Created(head)) => {
                    done.made += 1;
                    nearer.extend(sooner(&head).map(|after| (job.id, after)));
                    jobs.push(job);
                    heads.push(head);
                }
                Ok(Submitted::Exists(head)) => {
                    // Its home was set as if it were new.
                    nearer.push((job.id, Duration::ZERO));
                    // Made by this very call, whose first reply was lost, or by somebody who was faster. Twice is
                    // harmless.
                    if head.last_event.is_none() {
                        jobs.push(job);
                        heads.push(head);
                    }
                }
                Ok(Submitted::Mismatch) => nearer.push((job.id, Duration::ZERO)),
                Err(fault) => done.fault = Some(fault),
            }
        }
        let fresh: Vec<_> = heads.iter().enumerate().collect();
        // What the bus does not take is published by the first look.
        let (forwarded, _) = tokio::join!(self.forward(&nearer), self.announce(&jobs, &fresh));
        if let Err(fault) = forwarded {
            done.fault = Some(fault);
        }
    }
}
