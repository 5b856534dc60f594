//! Detects whether Redis lacks jobs that the streams still remember.
//!
//! A submit on its stream is at most ten minutes old; the record of its job is written before the submit and kept
//! longer than that. The check only reads, a handful of times. It reports that Redis was emptied only if none of the
//! jobs that it reads exists, so that one deleted job does not count. `recreate.rs` creates the jobs again.

use std::fmt;

use muster_domain::JobId;

use crate::Flow;

/// How many jobs of one message are checked.
const LOOKED_AT: usize = 16;

/// Redis was emptied, replaced, or put back from an older backup, while the streams were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The number of jobs that were checked; none of them exists.
    pub missing: usize,
    /// One of the missing jobs.
    pub example: JobId,
}

impl fmt::Display for Emptied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Emptied { missing, example } = self;
        write!(
            f,
            "Redis has none of {missing} jobs with submits on the stream (such as {example}): it was emptied, replaced, \
             or restored from an older backup"
        )
    }
}

impl Flow {
    /// Checks for the jobs of the oldest and the newest submit on the stream. Returns `None` if any job exists, or if
    /// the stream holds no submit.
    pub async fn emptied(&self) -> anyhow::Result<Option<Emptied>> {
        let mut jobs = self.bus.submitted_jobs(LOOKED_AT).await?;
        jobs.sort();
        jobs.dedup();
        let Some(example) = jobs.first().copied() else { return Ok(None) };
        let there = self.store.exist(&jobs).await?;
        Ok((there == 0).then_some(Emptied { missing: jobs.len(), example }))
    }
}
