//! The group commit: home, record, listing and one message, in the order that loses nothing.
//!
//! 1. Write homes, due in 30 s: whatever happens from here on, a check will find the job. Write places in the listing.
//! 2. Write records; each one is created or found.
//! 3. If a record was found and not created, forward its home to now, and publish the job again if it is still pending:
//!    the first try may have left something undone. If a job was created with a moment nearer than 30 s, forward its
//!    home to that moment.
//! 4. Publish the submit message and wait a quarter of a second for the bus: if the bus does not answer, the check
//!    publishes the submit.
//!
//! Every item gets its own answer.

use std::time::{Duration, Instant};

use muster_bus::subjects;
use muster_domain::{Durability, Head, JobId, Phase, State, job::PENDING_LOOK};
use muster_store::{Kept, NewJob, Record, StoreError, Submitted};
use muster_wire::{Body, encoded_len, v1};

use crate::{BUS_PATIENCE, Flow, failpoint};

/// An item that is stored in Redis.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The head of the job.
    pub head: Head,
    /// The job existed before this submit.
    pub replayed: bool,
    /// The bus did not confirm the submit: only Redis holds it.
    pub bus_deferred: bool,
    /// The durability that the submit reached.
    pub durability: Durability,
}

/// Why an item was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRefused {
    /// The id belongs to another request.
    #[error("this idempotency key was used with another body")]
    Mismatch,
    /// Redis did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// After this long a check may have removed the home as an orphan, so the home is written again before the answer.
const SLOW: Duration = Duration::from_secs(15);
/// How long publishing again may take. It is limited because the caller has other jobs to handle, and tries again.
const AGAIN_PATIENCE: Duration = Duration::from_secs(2);
/// How long a submit with durability `replicated` waits for a Redis replica.
const REPLICA_WAIT: Duration = Duration::from_secs(1);
/// How long a submit with durability `fsynced` waits for the disk, to which Redis writes every second.
const DISK_WAIT: Duration = Duration::from_millis(1_200);

/// How soon the first check of a new job must be, if its deadline or start-by comes before the usual first check.
pub(crate) fn sooner(head: &Head) -> Option<Duration> {
    let first = [head.deadline, head.start_by].into_iter().flatten().min()?;
    Some(first.remaining(head.since)).filter(|after| *after < PENDING_LOOK)
}

/// The submit message of a pending job, for the scheduler.
pub fn submit_item(
    id: JobId,
    head: &Head,
    spec: v1::Spec,
    payload: bytes::Bytes,
    body_hash: Option<[u8; 16]>,
) -> v1::Submit {
    let run_at = match head.phase {
        Phase::Pending { run_at } => run_at.0,
        _ => 0,
    };
    v1::Submit {
        job_id: id.as_bytes().to_vec().into(),
        version: head.version,
        spec: Some(spec),
        payload,
        pending_since: head.since.0,
        run_at,
        attempt: head.attempt.into(),
        deadline: head.deadline.map_or(0, |t| t.0),
        body_hash: body_hash.map(|hash| hash.to_vec().into()).unwrap_or_default(),
        created_at: head.created_at.0,
    }
}

impl Flow {
    /// Commits a group. Repeating any item with the same id is harmless.
    pub async fn submit(&self, jobs: &mut [NewJob]) -> Vec<Result<Accepted, SubmitRefused>> {
        let began = Instant::now();
        let created = self.create(jobs).await;
        let ours = |(job, outcome): (&NewJob, Result<(Submitted, Durability), StoreError>)| match outcome {
            // Only this process knows an id that it generated: this call created the record, and its first reply was
            // lost.
            Ok((Submitted::Exists(head), durability)) if job.body_hash.is_none() => {
                Ok((Submitted::Created(head), durability))
            }
            other => other,
        };
        let created: Vec<_> = jobs.iter().zip(created).map(ours).collect();
        failpoint!("submit.after_record");

        let (mut fresh, mut nearer) = (Vec::new(), Vec::new());
        for (place, (job, outcome)) in jobs.iter().zip(&created).enumerate() {
            match outcome {
                Ok((Submitted::Created(head), _)) => {
                    fresh.push((place, head));
                    nearer.extend(sooner(head).map(|after| (job.id, after)));
                }
                Ok((Submitted::Exists(head), _)) => {
                    nearer.push((job.id, Duration::ZERO));
                    // The first try may have died before it published the submit. Publishing twice is harmless. A job
                    // that has moved since is left to the check: a retry must not be published before its audit entry
                    // is written.
                    if head.state() == State::Pending && head.last_event.is_none() {
                        fresh.push((place, head));
                    }
                }
                Ok((Submitted::Mismatch, _)) => nearer.push((job.id, Duration::ZERO)),
                Err(_) => {}
            }
        }
        let (forwarded, deferred) = tokio::join!(self.forward(&nearer), self.announce(jobs, &fresh));
        failpoint!("submit.before_answer");
        if began.elapsed() > SLOW {
            let all: Vec<_> = jobs.iter().map(|j| (j.id, Duration::ZERO)).collect();
            if let Err(fault) = self.store.forward_homes(&all).await {
                return jobs.iter().map(|_| Err(fault.clone().into())).collect();
            }
        }
        let answer = |(place, outcome): (usize, Result<(Submitted, Durability), StoreError>)| {
            let (submitted, durability) = outcome?;
            let (head, replayed) = match submitted {
                Submitted::Created(head) => (head, false),
                Submitted::Exists(head) => (head, true),
                Submitted::Mismatch => return Err(SubmitRefused::Mismatch),
            };
            if nearer.iter().any(|(id, _)| *id == jobs[place].id) {
                forwarded.clone()?;
            }
            let bus_deferred = deferred.contains(&place);
            Ok(Accepted { head, replayed, bus_deferred, durability })
        };
        created.into_iter().enumerate().map(answer).collect()
    }

    /// Writes homes and places first, then the records of the jobs that have both.
    async fn create(&self, jobs: &mut [NewJob]) -> Vec<Result<(Submitted, Durability), StoreError>> {
        let prepared = self.store.prepare(jobs, PENDING_LOOK).await;
        failpoint!("submit.after_home");
        let wants = |job: &NewJob| job.spec.durability != Durability::Memory;
        if prepared.iter().all(Result::is_ok) && !jobs.iter().any(wants) {
            let created = self.store.submit(jobs).await;
            return created.into_iter().map(|r| r.map(|s| (s, Durability::Memory))).collect();
        }
        let of = |level| {
            let wanted = |(job, prepared): &(&NewJob, &Result<(), _>)| prepared.is_ok() && job.spec.durability == level;
            jobs.iter().zip(&prepared).filter(wanted).map(|(job, _)| job.clone()).collect::<Vec<_>>()
        };
        let (plain, replicated, fsynced) =
            (of(Durability::Memory), of(Durability::Replicated), of(Durability::Fsynced));
        let (plain, replicated, fsynced) = tokio::join!(
            self.store.submit(&plain),
            self.store.submit_durable(&replicated, Kept::ByReplicas(1), REPLICA_WAIT),
            self.store.submit_durable(&fsynced, Kept::OnDisk, DISK_WAIT),
        );
        let mut plain = plain.into_iter().map(|r| r.map(|s| (s, 0)));
        let (mut replicated, mut fsynced) = (replicated.into_iter(), fsynced.into_iter());
        let outcome = |(job, prepared): (&NewJob, Result<(), StoreError>)| {
            prepared?;
            let level = job.spec.durability;
            let next = match level {
                Durability::Memory => plain.next(),
                Durability::Replicated => replicated.next(),
                Durability::Fsynced => fsynced.next(),
            };
            let (submitted, keepers) = next.unwrap_or_else(|| Err(StoreError::Decode("no answer".into())))?;
            Ok((submitted, if keepers > 0 { level } else { Durability::Memory }))
        };
        jobs.iter().zip(prepared).map(outcome).collect()
    }

    pub(crate) async fn forward(&self, nearer: &[(JobId, Duration)]) -> Result<(), StoreError> {
        if nearer.is_empty() {
            return Ok(());
        }
        self.store.forward_homes(nearer).await?;
        let first = nearer.iter().map(|(_, after)| *after).min();
        self.hint_look(first.unwrap_or_default()).await;
        Ok(())
    }

    /// Publishes the submits of pending jobs; returns the places of those that the bus did not confirm.
    pub(crate) async fn announce(&self, jobs: &[NewJob], fresh: &[(usize, &Head)]) -> Vec<usize> {
        let items = fresh.iter().map(|(place, head)| {
            let job = &jobs[*place];
            (*place, submit_item(job.id, head, (&job.spec).into(), job.payload.clone(), job.body_hash))
        });
        self.publish_groups(items.collect(), BUS_PATIENCE).await
    }

    /// Publishes the submits of pending jobs again, in groups. Returns the jobs that the bus did not take.
    pub async fn publish_submits(&self, records: Vec<Record>) -> Vec<JobId> {
        let item = |r: Record| {
            (r.id, submit_item(r.id, &r.head, (&r.spec).into(), r.payload.unwrap_or_default(), r.body_hash))
        };
        self.publish_groups(records.into_iter().map(item).collect(), AGAIN_PATIENCE).await
    }

    /// Publishes submits that the bus did not confirm before. Returns those that it did not take this time either.
    pub async fn publish_deferred(&self, items: Vec<v1::Submit>) -> Vec<v1::Submit> {
        let items = items.into_iter().map(|item| (item.clone(), item)).collect();
        self.publish_groups(items, AGAIN_PATIENCE).await
    }

    /// Publishes one message per group; returns the keys of the items in groups that were not confirmed in time.
    async fn publish_groups<K>(&self, items: Vec<(K, v1::Submit)>, patience: Duration) -> Vec<K> {
        let groups = split(items, self.bus.max_message());
        let sends = groups.into_iter().map(|group| async move {
            let (whose, items): (Vec<K>, Vec<_>) = group.into_iter().unzip();
            let body = Body::Submit(v1::SubmitGroup { items });
            match self.bus.publish_within(&subjects::submit(), None, None, body, patience).await {
                Ok(()) => Vec::new(),
                Err(_) => whose,
            }
        });
        futures_util::future::join_all(sends).await.into_iter().flatten().collect()
    }
}

/// Groups items so that each group stays below the message limit.
fn split<K>(items: Vec<(K, v1::Submit)>, limit: usize) -> Vec<Vec<(K, v1::Submit)>> {
    const MOST: usize = 512;
    let mut groups: Vec<Vec<(K, v1::Submit)>> = Vec::new();
    let mut size = usize::MAX;
    for item in items {
        let own = encoded_len(&item.1) + 16;
        let full = groups.last().is_none_or(|g| g.len() >= MOST) || size.saturating_add(own) > limit;
        if full {
            groups.push(Vec::new());
            size = 0;
        }
        size += own;
        if let Some(group) = groups.last_mut() {
            group.push(item);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_below_the_message_limit_and_keep_their_order() {
        let item = |n: u32| (n, v1::Submit { payload: vec![0; 300].into(), version: n, ..Default::default() });
        let groups = split((0..100).map(item).collect(), 1000);
        assert!(groups.iter().all(|g| g.iter().map(|(_, s)| encoded_len(s)).sum::<usize>() <= 1000));
        let order: Vec<u32> = groups.concat().into_iter().map(|(n, _)| n).collect();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        assert_eq!(split((0..100).map(item).collect(), 1 << 20).len(), 1);
    }
}
