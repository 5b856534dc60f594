//! The ends of a run's jobs, read from the jobs' records.

use std::collections::HashMap;

use muster_domain::{JobId, Phase, job::Ending};
use muster_engine::run::{Event, JobEnd, RunError, Wait, What};
use muster_store::{Fields, Record};

use crate::{Kept, Runs, RunsError};

/// The most jobs that are read for one event, besides those that are known to have ended.
const MOST_READ: usize = 256;
/// Jobs read in one pipeline.
const CHUNK: usize = 500;

/// What the records of a run's open jobs say.
#[derive(Debug, Default)]
pub struct JobEnds {
    /// Ends, and losses of jobs that were confirmed.
    pub events: Vec<Event>,
    /// Confirmed jobs without a record. They are lost only if no failover hides them.
    pub absent: Vec<(String, JobId)>,
}

/// The kind of a job's end; none while it lives.
fn ending(record: &Record) -> Option<Ending> {
    match &record.head.phase {
        Phase::Ended { end, .. } => Some(*end),
        _ => None,
    }
}

fn end_of(kept: &Kept, task: &str, record: Record) -> Option<Event> {
    let ending = ending(&record)?;
    let at = record.head.since;
    let succeeded = ending == Ending::Succeeded;
    let (mut result, mut truncated) = (None, false);
    if let Some(stored) = record.result.filter(|_| succeeded) {
        truncated = stored.truncated;
        if kept.run.reads_result(task) && !stored.json.is_empty() {
            result = serde_json::from_slice(&stored.json).ok();
        }
    }
    let error = record.error.filter(|_| !succeeded).map(|error| RunError::new(error.code, error.message));
    let end = JobEnd {
        task: task.to_owned(),
        job: record.id,
        ending,
        result,
        truncated,
        error,
        attempts: u32::from(record.head.attempt),
    };
    Some(Event { at, what: What::JobEnded(end) })
}

impl Runs {
    /// Reads the records of the jobs that a run waits for: all of these that are known to have ended, and others up to a
    /// bound.
    pub async fn job_ends(&self, kept: &Kept, known: &[JobId]) -> Result<JobEnds, RunsError> {
        let waits =
            kept.run.waits_for(usize::MAX).map_err(|_| RunsError::unreadable(kept.id, "not read as a whole"))?;
        let mut open: HashMap<JobId, (String, bool)> = HashMap::new();
        for wait in waits {
            if let Wait::Job { task, job, confirmed } = wait {
                open.insert(job, (task, confirmed));
            }
        }
        let mut ids: Vec<JobId> = known.iter().copied().filter(|job| open.contains_key(job)).collect();
        if open.len() <= MOST_READ || known.is_empty() {
            let others = open.keys().copied().filter(|job| !known.contains(job));
            ids.extend(others);
        }
        let mut ends = JobEnds::default();
        for chunk in ids.chunks(CHUNK) {
            let reads = chunk.iter().any(|id| kept.run.reads_result(&open[id].0));
            let fields = Fields { result: reads, ..Fields::NONE };
            for (id, record) in chunk.iter().zip(self.flow.store.read(chunk, fields).await) {
                let Some((task, confirmed)) = open.get(id) else { continue };
                match record? {
                    Some(record) if !record.deleted => ends.events.extend(end_of(kept, task, record)),
                    // A stub is what retention leaves of an ended job.
                    _ if *confirmed => ends.absent.push((task.clone(), *id)),
                    _ => {}
                }
            }
        }
        Ok(ends)
    }
}
