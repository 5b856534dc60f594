//! Tells runs of workflows that their jobs have ended.
//!
//! One message for each home shard of the runs, because each shard has one owner. If the stream does not confirm a
//! message in time, the homes of its runs are forwarded to now instead: a look of the run reads its jobs. Only then may
//! the home of a job be removed. A run may hear of an end twice.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use muster_bus::subjects;
use muster_domain::{JobId, RunId, State, Time};
use muster_store::StoreError;
use muster_wire::{Body, run_bytes, v1};

use crate::{BUS_PATIENCE, Flow};

/// The most ends in one message; each has about fifty bytes.
const MOST: usize = 2_000;

/// The end of a job that belongs to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// The job.
    pub job: JobId,
    /// The run.
    pub run: RunId,
    /// The state in which the job ended.
    pub state: State,
    /// When the job ended.
    pub at: Time,
}

impl JobEnd {
    fn item(&self) -> v1::JobDone {
        v1::JobDone {
            job_id: self.job.as_bytes().to_vec().into(),
            run_id: run_bytes(Some(self.run)),
            state: self.state.code().into(),
            at: self.at.0,
        }
    }
}

/// The ends by the shards of their runs, in messages of bounded size.
fn messages(ends: Vec<JobEnd>) -> Vec<(u8, Vec<JobEnd>)> {
    let mut shards: BTreeMap<u8, Vec<JobEnd>> = BTreeMap::new();
    for end in ends {
        shards.entry(end.run.shard()).or_default().push(end);
    }
    let split =
        |(shard, ends): (u8, Vec<JobEnd>)| ends.chunks(MOST).map(|some| (shard, some.to_vec())).collect::<Vec<_>>();
    shards.into_iter().flat_map(split).collect()
}

impl Flow {
    /// Tells runs of the ends of their jobs: by the bus, or else by forwarding the homes of the runs. Repeating is
    /// harmless. After an error some runs may not have been told.
    pub async fn tell_job_ends(&self, ends: Vec<JobEnd>) -> Result<(), StoreError> {
        let tell = |(shard, ends): (u8, Vec<JobEnd>)| async move {
            let body = Body::JobDone(v1::JobDoneGroup { items: ends.iter().map(JobEnd::item).collect() });
            if self.bus.publish_within(&subjects::job_done(shard), None, None, body, BUS_PATIENCE).await.is_ok() {
                return Ok(());
            }
            let mut runs: Vec<(RunId, Duration)> = ends.iter().map(|end| (end.run, Duration::ZERO)).collect();
            runs.sort_unstable();
            runs.dedup();
            self.store.forward_homes(&runs).await
        };
        join_all(messages(ends).into_iter().map(tell)).await.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_grouped_by_the_shards_of_their_runs_and_messages_are_bounded() {
        let end = |shard| JobEnd { job: JobId::mint(0), run: RunId::mint(shard), state: State::Succeeded, at: Time(1) };
        let ends = [vec![end(3); MOST + 1], vec![end(1)]].concat();
        let messages = messages(ends);
        let sizes: Vec<_> = messages.iter().map(|(shard, ends)| (*shard, ends.len())).collect();
        assert_eq!(sizes, [(1, 1), (3, MOST), (3, 1)]);
        assert!(messages.iter().all(|(shard, ends)| ends.iter().all(|end| end.run.shard() == *shard)));
    }
}
