//! Lists of runs: every run of a tenant, newest first, in lists of ten minutes like those of jobs.
//!
//! What a run must match is the caller's, because the fields of a run are opaque here.

use muster_domain::{RunId, Tenant, Time};

use super::{LIST_WORK, ListError, PAGE_WORK};
use crate::{
    Store, StoredRun,
    place::{BUCKET, Bucket, Listing, Place},
};

/// The span of time that a page covers. It only saves reads: the caller checks the moments of each run itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSpan {
    /// Created at or after this time.
    pub created_after: Option<Time>,
    /// Created before this time.
    pub created_before: Option<Time>,
}

/// One page of a list of runs.
#[derive(Clone, Debug, Default)]
pub struct RunPage {
    /// The matching runs, newest first, with the fields that were asked for.
    pub items: Vec<(RunId, StoredRun)>,
    /// Runs on this part of the list that cannot be read, so it is unknown whether they match.
    pub unreadable: Vec<RunId>,
    /// The cursor of the next page; none at the end.
    pub next_cursor: Option<String>,
}

impl RunPage {
    /// Ends the page behind its first `n` runs: the next page begins with the others.
    pub fn cut(&mut self, n: usize) {
        if n == 0 || n >= self.items.len() {
            return;
        }
        self.items.truncate(n);
        let last = self.items.last().and_then(|(_, run)| run.place);
        self.next_cursor = last.and_then(|place| cursor(place.bucket(), place.position()));
    }
}

fn cursor(bucket: Bucket, below: u64) -> Option<String> {
    Some(format!("r.{bucket}.{below}"))
}

fn read_cursor(text: &str) -> Option<(Bucket, u64)> {
    let (bucket, below) = text.strip_prefix("r.")?.split_once('.')?;
    Some((Bucket::parse(bucket.as_bytes())?, below.parse().ok()?))
}

impl Store {
    /// One page of a tenant's runs that the caller admits, newest first. Reads `fields` of each run; none: all. A page
    /// reads a bounded number of runs, so it may be short or empty: only a missing cursor ends the list.
    pub async fn list_runs(
        &self,
        tenant: &Tenant,
        from: Option<&str>,
        limit: usize,
        span: RunSpan,
        fields: &[&[u8]],
        mut admits: impl FnMut(RunId, &StoredRun) -> bool + Send,
    ) -> Result<RunPage, ListError> {
        let from = from.map(|text| read_cursor(text).ok_or(ListError::BadCursor)).transpose()?;
        let (mut from, mut below) = from.unwrap_or((Bucket::LAST, u64::MAX));
        if let Some(before) = span.created_before {
            let newest = Bucket::first(before.0 / BUCKET + 1);
            if newest.span < from.span {
                (from, below) = (newest, u64::MAX);
            }
        }
        let oldest = span.created_after.map_or(0, |t| (t.0 / BUCKET).saturating_sub(1));
        let (lists, rest) = self.buckets_from(Listing::Runs, tenant, from, oldest).await?;
        let (mut page, mut work) = (RunPage::default(), PAGE_WORK);
        for current in lists {
            let length = self.bucket_length(Listing::Runs, tenant, current).await?;
            work = work.saturating_sub(LIST_WORK);
            let mut end = if current == from { below.min(length) } else { length };
            while end > 0 {
                if work == 0 {
                    page.next_cursor = cursor(current, end);
                    return Ok(page);
                }
                let start = end.saturating_sub(work.min(limit.max(50)) as u64);
                let ids = self.bucket_slice::<RunId>(tenant, current, start, end).await?;
                let runs = self.read_runs(&ids, fields).await;
                // The newest runs are at a list's end.
                for (n, (id, run)) in ids.iter().zip(runs).enumerate().rev() {
                    let position = start + n as u64;
                    match run {
                        Ok(Some(run)) if run.place == Some(Place::new(current, position)) && admits(*id, &run) => {
                            page.items.push((*id, run));
                        }
                        Ok(_) => {}
                        Err(fault) if fault.is_retryable() => return Err(fault.into()),
                        Err(_) if !page.unreadable.contains(id) => page.unreadable.push(*id),
                        Err(_) => {}
                    }
                    if page.items.len() == limit {
                        page.next_cursor = cursor(current, position);
                        return Ok(page);
                    }
                }
                work = work.saturating_sub(ids.len());
                end = start;
            }
        }
        page.next_cursor = rest.and_then(|bucket| cursor(bucket, u64::MAX));
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_runs_is_no_other() {
        let text = cursor(Bucket::first(3), 9).unwrap();
        assert_eq!(read_cursor(&text), Some((Bucket::first(3), 9)));
        for bad in ["", "r", "r.1", "r.1.x", "r.1.2.3", "b.1.2", "r.-1.2"] {
            assert_eq!(read_cursor(bad), None, "{bad}");
        }
    }
}
