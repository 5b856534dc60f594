//! The ends of a run's jobs and sub-runs, read from their records.

use std::collections::HashMap;

use muster_domain::{JobId, Phase, RunId, Time, job::Ending};
use muster_engine::{
    run::{Event, Glance, JobEnd, RunError, SubRunEnd, Wait, What},
    value,
};
use muster_store::{Fields, Record, StoredResult};
use serde_json::Value;

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

/// The result that the run gets of its job, and whether the job has one that the run cannot hold. That counts as
/// truncated: whoever reads it gets an error.
fn held(stored: &StoredResult) -> (Option<Value>, bool) {
    if stored.json.is_empty() {
        return (None, stored.truncated);
    }
    match value::parse(&stored.json) {
        Ok(value) => (Some(value), stored.truncated),
        Err(_) => (None, true),
    }
}

fn end_of(kept: &Kept, task: &str, record: Record) -> Option<Event> {
    let ending = ending(&record)?;
    let at = record.head.since;
    let succeeded = ending == Ending::Succeeded;
    let stored = record.result.filter(|_| succeeded);
    let (result, truncated) = match &stored {
        Some(stored) if kept.run.reads_result(task) => held(stored),
        stored => (None, stored.as_ref().is_some_and(|stored| stored.truncated)),
    };
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

impl Runs {
    /// The ends of sub-runs that a run waits for and was not told, or whose news a failover lost. Reads a bounded number
    /// of sub-runs.
    pub async fn sub_run_ends(&self, kept: &Kept) -> Result<Vec<Event>, RunsError> {
        let waits =
            kept.run.waits_for(usize::MAX).map_err(|_| RunsError::unreadable(kept.id, "not read as a whole"))?;
        let open: Vec<(String, RunId)> = waits
            .into_iter()
            .filter_map(|wait| match wait {
                Wait::SubRun { step, run, .. } => Some((step, run)),
                _ => None,
            })
            .take(MOST_READ)
            .collect();
        let ids: Vec<RunId> = open.iter().map(|(_, run)| *run).collect();
        let names = Glance::FIELDS.map(str::as_bytes);
        let (mut events, seen) = (Vec::new(), self.flow.store.read_runs(&ids, &names).await);
        for ((step, run), stored) in open.into_iter().zip(seen) {
            let Some(stored) = stored? else { continue };
            let [about, head] = names.map(|name| stored.fields.get(name).map(AsRef::as_ref));
            let ended = Glance::read(about, head).is_ok_and(|glance| glance.ended != Time::NONE);
            if !ended {
                continue;
            }
            let Some((child, _)) = self.read(run).await? else { continue };
            let at = child.run.times().1.max(kept.run.now());
            let output = child.run.output().ok().flatten().cloned();
            let (state, error) = (child.run.state(), child.run.error().cloned());
            let end = SubRunEnd { step, run, undone: false, state, output, error };
            events.push(Event { at, what: What::SubRunEnded(end) });
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::value::MOST_LEVELS;

    use super::*;

    #[test]
    fn a_result_that_a_run_cannot_hold_counts_as_truncated() {
        let of = |json: String| held(&StoredResult { json: json.into(), ..StoredResult::default() });
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let (result, truncated) = of(nested(MOST_LEVELS));
        assert_eq!((result.unwrap().to_string(), truncated), (nested(MOST_LEVELS), false));
        for json in [nested(MOST_LEVELS + 1), nested(128), r#"[{"$serde_json::private::RawValue":"[]"}]"#.to_owned()] {
            assert_eq!(of(json.clone()), (None, true), "{json}");
        }
        assert_eq!(of(String::new()), (None, false));
        assert_eq!(held(&StoredResult { truncated: true, ..StoredResult::default() }), (None, true));
    }
}
