//! Whether every job was delivered as promised: executed once, ended once. The workers recorded each execution; the
//! API says how each job ended. Anything else makes a run void.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    fmt, fs,
    path::Path,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::try_join_all;
use muster_domain::JobId;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{keep_alive::KeepAlive, load, requests, rig::Rig};
use crate::record;

/// The number of connections that ask how jobs ended.
const ASKING: usize = 64;
/// How many of the last executed jobs must have ended before the clock stops.
const LAST: usize = 20;

/// The counted results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Delivery {
    /// Jobs that a gateway accepted.
    accepted: usize,
    /// Accepted jobs that succeeded.
    succeeded: usize,
    /// Accepted jobs that succeeded at the first attempt.
    succeeded_at_once: usize,
    /// Executions that the workers recorded.
    executions: usize,
    /// Accepted jobs that were executed more than once.
    executed_again: usize,
    /// Accepted jobs that were never executed.
    never_executed: usize,
    /// Executed jobs that the bench did not submit.
    strangers: usize,
}

/// The fields of a job's answer that describe its end.
#[derive(Deserialize)]
struct Ended {
    state: String,
    done: bool,
    attempt: u32,
}

impl Delivery {
    /// Asks for every job and reads every execution. Waits for jobs that have not ended yet.
    pub(super) async fn check(
        rig: &Rig,
        accepted: &[JobId],
        executed: &[JobId],
        patience: Duration,
    ) -> anyhow::Result<Delivery> {
        let (succeeded, succeeded_at_once) = ended_well(rig, accepted, patience).await?;
        Ok(Delivery { succeeded, succeeded_at_once, ..Delivery::judge(accepted, executed) })
    }

    fn judge(accepted: &[JobId], executed: &[JobId]) -> Delivery {
        let mut times: HashMap<JobId, usize> = HashMap::with_capacity(executed.len());
        executed.iter().for_each(|job| *times.entry(*job).or_default() += 1);
        let known: HashSet<&JobId> = accepted.iter().collect();
        let count = |job: &JobId| times.get(job).copied().unwrap_or_default();
        Delivery {
            accepted: accepted.len(),
            executions: executed.len(),
            executed_again: accepted.iter().filter(|job| count(job) > 1).count(),
            never_executed: accepted.iter().filter(|job| count(job) == 0).count(),
            strangers: times.keys().filter(|job| !known.contains(job)).count(),
            ..Delivery::default()
        }
    }

    /// Whether everything went as promised, at the first attempt.
    pub(super) fn is_exact(&self) -> bool {
        self.succeeded_at_once == self.accepted
            && self.executions == self.accepted
            && (self.executed_again, self.never_executed, self.strangers) == (0, 0, 0)
    }

    /// Whether every accepted job was executed and succeeded, at any attempt. For `unknown` further jobs it is not
    /// known whether they were accepted.
    pub(super) fn is_whole(&self, unknown: u64) -> bool {
        self.succeeded == self.accepted && self.never_executed == 0 && self.strangers as u64 <= unknown
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            return write!(f, "exact: {} accepted, each executed once and succeeded", self.accepted);
        }
        write!(
            f,
            "NOT exact: {} accepted, {} of them succeeded, {} at the first attempt; {} executions, \
             {} jobs more than once, {} never; {} strangers",
            self.accepted,
            self.succeeded,
            self.succeeded_at_once,
            self.executions,
            self.executed_again,
            self.never_executed,
            self.strangers
        )
    }
}

/// The jobs of a record, in order.
pub(super) fn executions(file: &Path) -> anyhow::Result<Vec<JobId>> {
    let bytes = fs::read(file)?;
    record::entries(&bytes).map(|(id, _)| id.parse().ok().context("a record without an id")).collect()
}

/// Waits until the jobs that were executed last are settled too.
pub(super) async fn until_settled(rig: &Rig, executed: &[JobId], patience: Duration) -> anyhow::Result<()> {
    until_ended(rig, &executed[executed.len().saturating_sub(LAST)..], patience).await
}

/// Waits until each of these jobs has ended, at most for `patience`.
pub(super) async fn until_ended(rig: &Rig, jobs: &[JobId], patience: Duration) -> anyhow::Result<()> {
    ended_well(rig, jobs, patience).await.map(drop)
}

/// How many of these jobs succeeded, and how many at their first attempt. Waits for each of them.
async fn ended_well(rig: &Rig, jobs: &[JobId], patience: Duration) -> anyhow::Result<(usize, usize)> {
    let mut connections = load::connect(&rig.addrs, ASKING.min(jobs.len())).await?;
    let limit = Instant::now() + patience;
    let (next, good) = (Cell::new(0), Cell::new((0, 0)));
    let (next, good) = (&next, &good);
    let each = connections.iter_mut().map(|connection| async move {
        while let Some(job) = jobs.get(next.replace(next.get() + 1)) {
            if let Some(attempt) = succeeded(rig, connection, *job, limit).await? {
                let (all, at_once) = good.get();
                good.set((all + 1, at_once + usize::from(attempt == 1)));
            }
        }
        anyhow::Ok(())
    });
    try_join_all(each).await?;
    Ok(good.get())
}

/// The attempt at which the job succeeded, if it did.
async fn succeeded(rig: &Rig, connection: &mut KeepAlive, job: JobId, limit: Instant) -> anyhow::Result<Option<u32>> {
    let mut wait = Duration::ZERO;
    loop {
        let request = requests::get(&rig.door, &format!("/jobs/{job}?wait_ms={}", wait.as_millis()));
        let answer = connection.exchange(&request).await?;
        if let Some(pause) = load::asked_to_wait(&answer) {
            tokio::time::sleep(pause).await;
            continue;
        }
        if answer.status != 200 {
            // An accepted job that does not exist has not succeeded.
            return Ok(None);
        }
        let ended: Ended = serde_json::from_slice(answer.body).context("an answer that is no job")?;
        let left = limit.saturating_duration_since(Instant::now());
        if ended.done || left.is_zero() {
            return Ok((ended.done && ended.state == "succeeded").then_some(ended.attempt));
        }
        wait = left.min(Duration::from_secs(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_means_each_job_once_and_no_other() {
        let [a, b, stranger] = [1, 2, 3].map(JobId::mint);
        let exact = |executed: &[JobId], good: usize| {
            Delivery { succeeded_at_once: good, ..Delivery::judge(&[a, b], executed) }.is_exact()
        };
        assert!(exact(&[b, a], 2));
        assert!(!exact(&[b, a], 1), "one did not succeed");
        assert!(!exact(&[a, b, a], 2), "one twice");
        assert!(!exact(&[a], 2), "one never");
        assert!(!exact(&[a, a], 2), "one twice and one never");
        assert!(!exact(&[a, b, stranger], 2), "one that nobody submitted");
        let whole = |executed: &[JobId], succeeded: usize, unknown: u64| {
            Delivery { succeeded, ..Delivery::judge(&[a, b], executed) }.is_whole(unknown)
        };
        assert!(whole(&[a, b, a, stranger], 2, 1), "again, and one of whom nobody was sure");
        assert!(!whole(&[a, b, stranger], 2, 0) && !whole(&[a, stranger], 2, 1) && !whole(&[a, b], 1, 0));
    }
}
