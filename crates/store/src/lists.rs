//! Listings: every job of a tenant, newest first, in lists of ten minutes each.
//!
//! A job's id is pushed before its record is created, and the record remembers the place it got. A repeated submit, by
//! a client or after a lost reply, pushes once more; the record keeps its first place, and an entry anywhere else is
//! skipped. So every job is listed, and shown once, whichever process dies at whatever time.
//!
//! Places are taken just before the records are created, so jobs that two gateways accept at the same moment may be
//! listed a few milliseconds out of the order of their `created_at`. Jobs that came while the list's node was away are
//! on another list of the same ten minutes, and are listed behind it.
//!
//! A cursor is a list and a position in it. Lists only grow at their end, so a cursor never moves, however many jobs
//! are added in the meantime. A page reads at most [`PAGE_WORK`] records and a bounded number of lists, and ends when
//! it holds [`PAGE_BYTES`] of payloads and results, which are read only for matches. So a page may be short, or empty,
//! and only a missing cursor ends the list.

mod places;
mod runs;

use std::{cmp::Reverse, collections::BTreeMap};

use bytes::Bytes;
use muster_domain::{JobId, RunId, State, Tenant, Time, Topic};

pub(crate) use self::places::{Listed, Noted};
pub use self::runs::{RunPage, RunSpan};
use crate::{
    Store, StoreError, keys,
    place::{BUCKET, Bucket, Listing, Place},
    record::{Fields, Record},
    router::Command,
    script::{list, number},
};

/// The most records that one page reads.
pub const PAGE_WORK: usize = 2000;
/// A page with this many bytes of payloads and results is full: no job comes after the one that reached this size.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The number of matches whose large fields are read at once: together at most 12 MiB.
const LARGE_AT_ONCE: usize = 16;
/// Reading one list of ten minutes costs as much as this many records, because it takes calls of its own.
const LIST_WORK: usize = 10;
/// The most lists that one page reads.
const PAGE_LISTS: usize = PAGE_WORK / LIST_WORK;

/// What a listed job must match. Empty fields match everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// One of these states.
    pub states: Vec<State>,
    /// This topic.
    pub topic: Option<Topic>,
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// This error code.
    pub error_code: Option<String>,
    /// This worker, by its own name.
    pub worker: Option<String>,
    /// This run of a workflow.
    pub run: Option<RunId>,
    /// Created at or after this time.
    pub created_after: Option<Time>,
    /// Created before this time.
    pub created_before: Option<Time>,
    /// Finished at or after this time.
    pub finished_after: Option<Time>,
    /// Finished before this time.
    pub finished_before: Option<Time>,
}

impl ListFilter {
    /// Whether a job matches the filter.
    pub fn admits(&self, job: &Record) -> bool {
        let state = job.head.state();
        let within = |at: Option<Time>, after: Option<Time>, before: Option<Time>| {
            after.is_none_or(|a| at.is_some_and(|t| t >= a)) && before.is_none_or(|b| at.is_some_and(|t| t < b))
        };
        let error = job.error.as_ref().filter(|_| state != State::Succeeded).map(|e| &e.code);
        let worker = job.head.last_worker.as_ref().map(|w| w.own_name());
        (self.states.is_empty() || self.states.contains(&state))
            && self.topic.as_ref().is_none_or(|t| *t == job.spec.topic)
            && self.labels.iter().all(|(k, v)| job.spec.labels.get(k) == Some(v))
            && self.run.is_none_or(|run| job.spec.run == Some(run))
            && self.error_code.as_ref().is_none_or(|c| Some(c) == error)
            && self.worker.as_deref().is_none_or(|w| worker == Some(w))
            && within(Some(job.head.created_at), self.created_after, self.created_before)
            && within(job.head.finished_at(), self.finished_after, self.finished_before)
    }

    fn only_bad_ends(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|s| s.is_bad_end())
    }
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The matching jobs, newest first.
    pub items: Vec<Record>,
    /// Jobs on this part of the list that cannot be read, so it is unknown whether they match.
    pub unreadable: Vec<JobId>,
    /// The cursor of the next page; none at the end.
    pub next_cursor: Option<String>,
}

/// A job on a list: its record, or its id if the record cannot be read.
type Found = Result<Record, JobId>;

fn id_of(job: &Found) -> JobId {
    job.as_ref().map_or_else(|id| *id, |record| record.id)
}

impl Page {
    /// Adds a job, unless the page already has it.
    fn add(&mut self, job: Found) {
        let id = id_of(&job);
        match job {
            Ok(record) if !self.items.iter().any(|seen| seen.id == id) => self.items.push(record),
            Err(_) if !self.unreadable.contains(&id) => self.unreadable.push(id),
            _ => {}
        }
    }

    fn is_full(&self, limit: usize) -> bool {
        self.items.len() == limit || self.items.iter().map(large).sum::<usize>() >= PAGE_BYTES
    }
}

/// The bytes of a record's large fields.
fn large(record: &Record) -> usize {
    let result = record.result.as_ref().map_or(0, |result| result.json.len() + result.preview.len());
    record.payload.as_ref().map_or(0, Bytes::len) + result
}

/// The parameters of a page.
#[derive(Clone, Copy)]
struct Ask<'a> {
    tenant: &'a Tenant,
    limit: usize,
    filter: &'a ListFilter,
    fields: Fields,
}

/// The position of a walk: everything at or after it has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// In the listing: this bucket, below this position.
    Listed { bucket: Bucket, below: u64 },
    /// In the dead letters: below this score and id.
    Dead { at: u64, id: JobId },
}

impl Cursor {
    fn parse(text: &str) -> Option<Cursor> {
        let mut parts = text.split('.');
        let cursor = match (parts.next()?, parts.next()?, parts.next()?) {
            ("b", bucket, below) => {
                let number: u64 = bucket.parse().ok()?;
                let bucket = u32::try_from(number).map_or(Bucket::LAST, Bucket::from_number);
                Cursor::Listed { bucket, below: below.parse().ok()? }
            }
            ("d", at, id) => Cursor::Dead { at: at.parse().ok()?, id: id.parse().ok()? },
            _ => return None,
        };
        parts.next().is_none().then_some(cursor)
    }

    fn text(self) -> String {
        match self {
            Cursor::Listed { bucket, below } => format!("b.{bucket}.{below}"),
            Cursor::Dead { at, id } => format!("d.{at}.{id}"),
        }
    }
}

/// Why a list could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The cursor was not given by a list.
    #[error("this cursor is not from a list of this kind")]
    BadCursor,
    /// Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// One page of a tenant's jobs that match the filter, newest first.
    pub async fn list(
        &self,
        tenant: &Tenant,
        cursor: Option<&str>,
        limit: usize,
        filter: &ListFilter,
        fields: Fields,
    ) -> Result<Page, ListError> {
        let cursor = cursor.map(|text| Cursor::parse(text).ok_or(ListError::BadCursor)).transpose()?;
        let ask = Ask { tenant, limit, filter, fields };
        let from = match (cursor, filter.only_bad_ends()) {
            (None, true) => return self.list_dead(ask, None).await,
            (Some(Cursor::Dead { at, id }), true) => return self.list_dead(ask, Some((at, id))).await,
            (None, false) => (Bucket::LAST, u64::MAX),
            (Some(Cursor::Listed { bucket, below }), false) => (bucket, below),
            _ => return Err(ListError::BadCursor),
        };
        self.list_all(ask, from).await
    }

    async fn list_all(&self, ask: Ask<'_>, (mut from, mut below): (Bucket, u64)) -> Result<Page, ListError> {
        let Ask { tenant, limit, filter, .. } = ask;
        let mut page = Page::default();
        let mut work = PAGE_WORK;
        if let Some(before) = filter.created_before {
            // Buckets that began later hold nothing that matches, except when an estimate of the time was ahead.
            let newest = Bucket::first(before.0 / BUCKET + 1);
            if newest.span < from.span {
                (from, below) = (newest, u64::MAX);
            }
        }
        let oldest = filter.created_after.map_or(0, |t| (t.0 / BUCKET).saturating_sub(1));
        let (lists, rest) = self.buckets_from(Listing::Jobs, tenant, from, oldest).await?;
        for current in lists {
            let length = self.bucket_length(Listing::Jobs, tenant, current).await?;
            work = work.saturating_sub(LIST_WORK);
            let mut end = if current == from { below.min(length) } else { length };
            while end > 0 {
                if work == 0 {
                    page.next_cursor = Some(Cursor::Listed { bucket: current, below: end }.text());
                    return Ok(page);
                }
                let start = end.saturating_sub(work.min(limit.max(50)) as u64);
                let ids = self.bucket_slice::<JobId>(tenant, current, start, end).await?;
                if let Some(place) = self.fill(&mut page, ask, &ids, Some((current, start))).await? {
                    page.next_cursor = Some(Cursor::Listed { bucket: current, below: start + place as u64 }.text());
                    return Ok(page);
                }
                work = work.saturating_sub(ids.len());
                end = start;
            }
        }
        page.next_cursor = rest.map(|bucket| Cursor::Listed { bucket, below: u64::MAX }.text());
        Ok(page)
    }

    async fn list_dead(&self, ask: Ask<'_>, after: Option<(u64, JobId)>) -> Result<Page, ListError> {
        let mut page = Page::default();
        let (dead, more) = self.dead_letters_below(ask.tenant, after, PAGE_WORK).await?;
        for chunk in dead.chunks(ask.limit.max(50)) {
            let ids: Vec<JobId> = chunk.iter().map(|d| d.0).collect();
            if let Some(place) = self.fill(&mut page, ask, &ids, None).await? {
                let (id, at) = chunk[place];
                page.next_cursor = Some(Cursor::Dead { at: at.0, id }.text());
                return Ok(page);
            }
        }
        if let (true, Some((id, at))) = (more, dead.last()) {
            page.next_cursor = Some(Cursor::Dead { at: at.0, id: *id }.text());
        }
        Ok(page)
    }

    /// Adds the matching ones of `ids` to the page, newest first. If that fills the page: returns the number of the id
    /// that filled it.
    async fn fill(
        &self,
        page: &mut Page,
        ask: Ask<'_>,
        ids: &[JobId],
        listed: Option<(Bucket, u64)>,
    ) -> Result<Option<usize>, StoreError> {
        let entries: Vec<(usize, JobId)> = ids.iter().copied().enumerate().collect();
        let mut found = self.matching(ask, &entries, Fields::NONE, listed).await?;
        if listed.is_some() {
            // The newest jobs are at a bucket's end.
            found.reverse();
        }
        let mut add = |found: Vec<(usize, Found)>| {
            found.into_iter().find_map(|(place, job)| {
                page.add(job);
                page.is_full(ask.limit).then_some(place)
            })
        };
        if ask.fields == Fields::NONE {
            return Ok(add(found));
        }
        // Matches are read once more with their large fields, and checked once more: they may have moved.
        let matches: Vec<(usize, JobId)> = found.iter().map(|(place, job)| (*place, id_of(job))).collect();
        for some in matches.chunks(LARGE_AT_ONCE.min(ask.limit)) {
            if let Some(place) = add(self.matching(ask, some, ask.fields, listed).await?) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// The entries that belong to the tenant, still exist and match, and those that cannot be read, read with these
    /// fields. `listed` is their bucket and the position of number 0.
    async fn matching(
        &self,
        ask: Ask<'_>,
        entries: &[(usize, JobId)],
        fields: Fields,
        listed: Option<(Bucket, u64)>,
    ) -> Result<Vec<(usize, Found)>, StoreError> {
        // In a listing, an entry counts only at the place that the record remembers.
        let counts = |n: usize, record: &Record| match (listed, record.place) {
            (Some((bucket, start)), Some(place)) => place == Place::new(bucket, start + n as u64),
            _ => true,
        };
        let mut found: Vec<(usize, Found)> = Vec::new();
        let ids: Vec<JobId> = entries.iter().map(|(_, id)| *id).collect();
        for (&(place, _), record) in entries.iter().zip(self.read(&ids, fields).await) {
            let job = match record {
                Err(StoreError::Unreadable { job, .. }) => Err(job),
                record => match record? {
                    Some(record)
                        if !record.deleted
                            && record.spec.tenant == *ask.tenant
                            && ask.filter.admits(&record)
                            && counts(place, &record) =>
                    {
                        Ok(record)
                    }
                    _ => continue,
                },
            };
            if !found.iter().any(|(_, seen)| id_of(seen) == id_of(&job)) {
                found.push((place, job));
            }
        }
        Ok(found)
    }

    /// A tenant's lists from this one on, newest first, and within the same ten minutes by choice: as many as a page
    /// reads, and where the others begin.
    async fn buckets_from(
        &self,
        of: Listing,
        tenant: &Tenant,
        from: Bucket,
        oldest: u64,
    ) -> Result<(Vec<Bucket>, Option<Bucket>), StoreError> {
        // Enough, even if some choices of the first ten minutes are already read, and some of the last are cut off.
        const READ: usize = PAGE_LISTS + 1 + 2 * (u8::MAX as usize + 1);
        let key = keys::buckets(of, tenant);
        let mut cmd = redis::cmd("ZREVRANGEBYSCORE");
        cmd.arg(key.as_bytes()).arg(from.span).arg(oldest).arg("LIMIT").arg(0).arg(READ);
        let members = list(self.router().call(Command::plain(cmd)).await?)?;
        let mut buckets: Vec<Bucket> = members.iter().filter_map(|member| Bucket::parse(member)).collect();
        let order = |bucket: &Bucket| (Reverse(bucket.span), bucket.choice);
        buckets.retain(|bucket| order(bucket) >= order(&from));
        buckets.sort_by_key(order);
        let rest = buckets.get(PAGE_LISTS).copied();
        buckets.truncate(PAGE_LISTS);
        Ok((buckets, rest))
    }

    pub(crate) async fn bucket_length(&self, of: Listing, tenant: &Tenant, bucket: Bucket) -> Result<u64, StoreError> {
        let key = keys::listing(of, tenant, bucket);
        let mut cmd = redis::cmd("LLEN");
        cmd.arg(key.as_bytes());
        number(&self.router().call(Command::plain(cmd)).await?)
    }

    pub(crate) async fn bucket_slice<I: Listed>(
        &self,
        tenant: &Tenant,
        bucket: Bucket,
        start: u64,
        end: u64,
    ) -> Result<Vec<I>, StoreError> {
        let key = keys::listing(I::LISTING, tenant, bucket);
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(key.as_bytes()).arg(start).arg(end - 1);
        let raw = list(self.router().call(Command::plain(cmd)).await?)?;
        raw.iter().map(|id| I::from_slice(id).ok_or_else(|| StoreError::Decode("an id in a listing".into()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_their_text_and_nothing_else_is_one() {
        for cursor in
            [Cursor::Listed { bucket: Bucket::first(3), below: 9 }, Cursor::Dead { at: 5, id: JobId::mint(2) }]
        {
            assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        }
        for bad in ["", "b", "b.1", "b.1.x", "b.1.2.3", "x.1.2", "b.-1.2"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }
}
