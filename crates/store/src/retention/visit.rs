//! One listing that is due: walked in slices, then dropped, or kept until somebody on it can be due.

use std::time::Duration;

use muster_domain::{JobId, Tenant, Time, time::micros};

use super::{Retained, Retention};
use crate::{
    HomeKind, Store, StoreError, failpoint,
    homes::text,
    jobs::KEEP_KEY,
    keys,
    place::{BUCKET, Bucket, Place},
    record::{Fields, Record},
    router::Command,
    scripts,
};

/// Most entries that one call reads.
const SLICE: usize = 500;
/// After its ten minutes a listing may still be written to by those who were late.
const LATE: Duration = Duration::from_micros(BUCKET);

/// How far one listing was read, and who stays.
#[derive(Debug)]
pub(super) struct Visit {
    bucket: Bucket,
    /// As first read.
    length: u64,
    position: u64,
    /// Somebody is alive, or stays for a reason that has no end yet.
    living: bool,
    /// When the first of those who ended is due.
    due: Option<Time>,
    /// It could not be read.
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

    /// Nobody writes to it any more.
    fn is_closed(&self, now: Time) -> bool {
        (self.bucket.ends() + LATE).reached(now)
    }

    /// When to look again at a listing that stays. Who has not ended yet cannot be due before a whole
    /// time of keeping has passed; and no later than that, in case somebody shortens it.
    fn next(&self, keep: &Retention, now: Time) -> Time {
        let latest = now + keep.least();
        let due = self.due.filter(|_| !self.is_empty()).unwrap_or(latest).min(latest);
        let due = if self.is_empty() { self.bucket.ends() + LATE } else { due };
        due.max(now + keep.grain())
    }
}

impl Store {
    /// Looks at the next slice of a listing, and deletes who is due.
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
        let ids = match self.bucket_slice(tenant, visit.bucket, visit.position, end).await {
            Err(fault) if !fault.is_retryable() => {
                visit.unreadable = true;
                done.unreadable += 1;
                return Ok(());
            }
            ids => ids?,
        };
        let records = self.read(&ids, Fields::NONE).await;
        // All or nothing, so that a slice which could not be read is read again.
        if let Some(Err(fault)) = records.iter().find(|r| r.as_ref().is_err_and(StoreError::is_retryable)) {
            return Err(fault.clone());
        }
        let now = self.now();
        let mut leaving = Vec::new();
        for (position, record) in (visit.position..).zip(records) {
            let here = Place::new(visit.bucket, position);
            match record {
                // Somebody must look into it; until then nothing is thrown away.
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
                        if due.reached(now) { leaving.push((record.id, kept)) } else { visit.due_at(due) }
                    }
                },
                Ok(_) => {}
            }
        }
        let leaving = self.without_home(leaving, visit).await?;
        let delete = |(id, kept): &(JobId, _)| scripts::job::Delete {
            key: keys::job(*id),
            keep_key: micros(KEEP_KEY),
            // No end is kept for less than the bus keeps its submit: nobody makes it again.
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

    /// Those whose ends are finished: who still has a home has effects to come.
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

    /// The listing was read to its end: dropped if nobody is left, otherwise kept; until when.
    pub(super) async fn close(
        &self,
        tenant: &Tenant,
        visit: &Visit,
        keep: &Retention,
        done: &mut Retained,
    ) -> Result<Option<Time>, StoreError> {
        let now = self.now();
        let (listing, buckets, kept) =
            (keys::listing(tenant, visit.bucket), keys::buckets(tenant), keys::kept_buckets(tenant));
        if visit.is_empty() && visit.is_closed(now) {
            let dropped = self.run(scripts::listing::Drop { key: listing, length: visit.length }).await?.dropped;
            if dropped == 1 {
                let forget = |key: &keys::Key| {
                    let mut cmd = redis::cmd("ZREM");
                    cmd.arg(key.as_bytes()).arg(visit.bucket.number());
                    Command::plain(cmd)
                };
                failpoint!("retention.after_drop");
                // Who stops in between is found by the next look: an empty list, to be forgotten.
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

/// Whether this entry is the one that counts for its record.
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
