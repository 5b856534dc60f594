//! Recreates jobs that Redis lost, from the submits that the bus kept.
//!
//! The order is that of a submit: audit entry, then homes and places, then records, then one message. A job with a
//! record or a stub is left alone, so every step may be repeated. Attempts that had started are lost with the record:
//! the job starts from the beginning.

use std::{collections::HashSet, time::Duration};

use muster_domain::{Act, JobSpec, Time, audit, job::PENDING_LOOK};
use muster_store::{KEEP_STUB, NewJob, StoreError, Submitted};
use muster_wire::{job_id, v1};

use crate::{Flow, failpoint, submit::sooner};

/// The result of recreating jobs from submits that were read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recreated {
    /// The number of jobs that were recreated.
    pub made: u64,
    /// Why some jobs could not be checked or created: their submits must be read again.
    pub fault: Option<StoreError>,
}

/// The job that a submit describes; none if the submit lacks fields. An earlier version published such submits, and it
/// left no stub for a job that it deleted.
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
    /// Recreates those jobs of which Redis has no trace. Repeating is harmless. Skips jobs that became pending so long
    /// ago that they may have ended and been deleted since: Redis loses what was written last.
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
        // Take each job once, however often its submit was published.
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
                    // The home was set as for a new job.
                    nearer.push((job.id, Duration::ZERO));
                    // This call created the job and its first reply was lost, or another replica was faster. Publishing
                    // twice is harmless.
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
        // If the bus does not take a submit, the first check of the job publishes it.
        let (forwarded, _) = tokio::join!(self.forward(&nearer), self.announce(&jobs, &fresh));
        if let Err(fault) = forwarded {
            done.fault = Some(fault);
        }
    }
}
