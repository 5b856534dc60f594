//! One listing that is due: read in slices, then dropped, or kept until one of its jobs can be due.

use std::time::Duration;

use muster_domain::{JobId, RunId, Tenant, Time, time::micros};

use super::{Retained, Retention};
use crate::{
    HomeKind, Store, StoreError, failpoint,
    homes::text,
    jobs::KEEP_KEY,
    keys,
    place::{BUCKET, Bucket, Listing, Place},
    record::{Fields, Record},
    router::Command,
    scripts,
};

/// The most entries that one call reads.
const SLICE: usize = 500;
/// How long after its ten minutes a late gateway may still add jobs to a listing.
const LATE: Duration = Duration::from_micros(BUCKET);

/// The progress of reading one listing, and which jobs stay.
#[derive(Debug)]
pub(super) struct Visit {
    bucket: Bucket,
    /// The length at the first read.
    length: u64,
    position: u64,
    /// A job has not ended, or stays for a reason without a known end.
    living: bool,
    /// When the first of the ended jobs is due.
    due: Option<Time>,
    /// The listing could not be read.
    unreadable: bool,
}

impl Visit {
    pub(super) fn new(bucket: Bucket, length: u64) -> Visit {
        Visit { bucket, length, position: 0, living: false, due: None, unreadable: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.unreadable || self.position >= self.length
    }

    fn due_at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn is_empty(&self) -> bool {
        !self.living && !self.unreadable && self.due.is_none()
    }

    /// Whether no gateway adds jobs to the listing any more.
    fn is_closed(&self, now: Time) -> bool {
        (self.bucket.ends() + LATE).reached(now)
    }

    /// When to check a kept listing again. A job that has not ended cannot be due before a whole retention has passed.
    /// The next check is no later than that, because the retention may be shortened.
    fn next(&self, keep: &Retention, now: Time) -> Time {
        let latest = now + keep.least();
        let due = self.due.filter(|_| !self.is_empty()).unwrap_or(latest).min(latest);
        let due = if self.is_empty() { self.bucket.ends() + LATE } else { due };
        due.max(now + keep.grain())
    }
}

impl Store {
    /// Checks the next slice of a listing, and deletes the jobs that are due.
    pub(super) async fn visit(
        &self,
        tenant: &Tenant,
        visit: &mut Visit,
        keep: &Retention,
        limit: usize,
        done: &mut Retained,
    ) -> Result<(), StoreError> {
        if visit.is_over() {
            return Ok(());
        }
        let end = visit.length.min(visit.position + limit.min(SLICE) as u64);
        let ids = match self.bucket_slice::<JobId>(tenant, visit.bucket, visit.position, end).await {
            Err(fault) if !fault.is_retryable() => {
                visit.unreadable = true;
                done.unreadable += 1;
                return Ok(());
            }
            ids => ids?,
        };
        let records = self.read(&ids, Fields::NONE).await;
        // If one record could not be read now, read the whole slice again later.
        if let Some(Err(fault)) = records.iter().find(|r| r.as_ref().is_err_and(StoreError::is_retryable)) {
            return Err(fault.clone());
        }
        let now = self.now();
        let mut leaving = Vec::new();
        for (position, record) in (visit.position..).zip(records) {
            let here = Place::new(visit.bucket, position);
            match record {
                // An operator must repair it; until then nothing is deleted.
                Err(_) => {
                    done.unreadable += 1;
                    visit.living = true;
                }
                Ok(Some(record)) if stands(&record, tenant, here) => match record.head.finished_at() {
                    None => visit.living = true,
                    Some(end) => {
                        let state = record.head.state();
                        let kept = keep.of(tenant, &record.spec.topic, state);
                        let due = end + kept;
                        match due.reached(now) {
                            true => leaving.push((record.id, (kept, record.spec.run))),
                            false => visit.due_at(due),
                        }
                    }
                },
                Ok(_) => {}
            }
        }
        let leaving = self.without_home(leaving, visit).await?;
        let leaving = self.without_run(leaving, visit).await?;
        let delete = |(id, kept): &(JobId, _)| scripts::job::Delete {
            key: keys::job(*id),
            keep_key: micros(KEEP_KEY),
            // No ended job is kept for a shorter time than the bus keeps its submit, so no reread can create it again.
            keep_stub: 0,
            kept: micros(*kept),
        };
        for reply in self.run_many(leaving.iter().map(delete).collect()).await {
            let outcome = match reply {
                Err(fault) if !fault.is_retryable() => {
                    done.unreadable += 1;
                    visit.living = true;
                    continue;
                }
                reply => reply?.outcome,
            };
            match outcome {
                1 => done.records += 1,
                2 => visit.living = true,
                4 => visit.due_at(now + keep.grain()),
                _ => {}
            }
        }
        if !leaving.is_empty() {
            failpoint!("retention.after_delete");
        }
        done.looked += ids.len() as u64;
        visit.position = end;
        Ok(())
    }

    /// The jobs whose effects are done: a job that still has a home has effects to come.
    async fn without_home<S>(&self, ended: Vec<(JobId, S)>, visit: &mut Visit) -> Result<Vec<(JobId, S)>, StoreError> {
        let ask = |(id, _): &(JobId, S)| {
            let key = keys::homes(HomeKind::Job, id.shard());
            let mut cmd = redis::cmd("ZSCORE");
            cmd.arg(key.as_bytes()).arg(text(*id));
            Command::plain(cmd)
        };
        let replies = self.router().many(ended.iter().map(ask).collect()).await;
        let mut finished = Vec::with_capacity(ended.len());
        for (item, reply) in ended.into_iter().zip(replies) {
            match reply? {
                redis::Value::Nil => finished.push(item),
                _ => visit.living = true,
            }
        }
        Ok(finished)
    }

    /// The jobs whose runs are deleted, or that belong to none: a kept run needs the results of its jobs.
    async fn without_run(
        &self,
        ended: Vec<(JobId, (Duration, Option<RunId>))>,
        visit: &mut Visit,
    ) -> Result<Vec<(JobId, Duration)>, StoreError> {
        let jobs: Vec<(JobId, Option<RunId>)> = ended.iter().map(|(id, (_, run))| (*id, *run)).collect();
        let stay = self.in_stored_runs(&jobs).await?;
        visit.living |= !stay.is_empty();
        Ok(ended.into_iter().filter(|(id, _)| !stay.contains(id)).map(|(id, (kept, _))| (id, kept)).collect())
    }

    /// Ends the visit of a listing that was read to its end. Drops the listing if no job is left, otherwise notes and
    /// returns when to check it again.
    pub(super) async fn close(
        &self,
        tenant: &Tenant,
        visit: &Visit,
        keep: &Retention,
        done: &mut Retained,
    ) -> Result<Option<Time>, StoreError> {
        let now = self.now();
        let (listing, buckets, kept) = (
            keys::listing(Listing::Jobs, tenant, visit.bucket),
            keys::buckets(Listing::Jobs, tenant),
            keys::kept_buckets(tenant),
        );
        if visit.is_empty() && visit.is_closed(now) {
            let dropped = self.run(scripts::listing::Drop { key: listing, length: visit.length }).await?.dropped;
            if dropped == 1 {
                let forget = |key: &keys::Key| {
                    let mut cmd = redis::cmd("ZREM");
                    cmd.arg(key.as_bytes()).arg(visit.bucket.number());
                    Command::plain(cmd)
                };
                failpoint!("retention.after_drop");
                // If the process dies here, the next check finds an empty list and removes its note.
                for reply in self.router().many(vec![forget(&buckets), forget(&kept)]).await {
                    reply?;
                }
                done.listings += 1;
                return Ok(None);
            }
        }
        let next = visit.next(keep, now);
        let mut cmd = redis::cmd("ZADD");
        cmd.arg(kept.as_bytes()).arg(next.0).arg(visit.bucket.number());
        self.router().call(Command::plain(cmd)).await?;
        Ok(Some(next))
    }
}

/// Whether this entry is the one that the record refers to.
fn stands(record: &Record, tenant: &Tenant, here: Place) -> bool {
    !record.deleted && record.spec.tenant == *tenant && record.place.is_none_or(|place| place == here)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const NOW: Time = Time(3_000_000 * BUCKET);

    fn next(change: impl Fn(&mut Visit)) -> Duration {
        let mut visit = Visit::new(Bucket::first(2_990_000), 10);
        change(&mut visit);
        visit.next(&Retention::of_all(7 * DAY, 30 * DAY), NOW).since(NOW)
    }

    #[test]
    fn a_listing_that_stays_is_looked_at_when_somebody_can_be_due() {
        assert_eq!(next(|visit| visit.living = true), 7 * DAY);
        assert_eq!(next(|visit| visit.unreadable = true), 7 * DAY);
        assert_eq!(next(|visit| visit.due = Some(NOW + DAY)), DAY);
        assert_eq!(next(|visit| visit.due = Some(NOW + 23 * DAY)), 7 * DAY, "the time may be shortened");
        assert_eq!(next(|visit| (visit.living, visit.due) = (true, Some(NOW + DAY))), DAY);
        let grain = Duration::from_secs(7 * 3600);
        assert_eq!(next(|visit| visit.due = Some(NOW)), grain, "many leave together");
        assert_eq!(next(|_| {}), grain, "somebody was added while it was dropped");
    }

    #[test]
    fn a_listing_that_may_still_be_written_to_is_not_dropped() {
        let visit = Visit::new(Bucket::first(2_999_999), 10);
        assert!(!visit.is_closed(NOW) && visit.is_closed(NOW + Duration::from_secs(600)));
        assert!(visit.is_empty());
    }
}
