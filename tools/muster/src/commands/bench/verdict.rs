//! Whether a bench was exact: every accepted job succeeded at its first attempt, and the worker,
//! who writes down each execution, saw each of them once and nothing else.

use std::{
    collections::{HashMap, HashSet},
    fmt, fs,
    io::{Read, Seek, SeekFrom},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use indicatif::ProgressBar;
use muster_domain::JobId;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    api::{Api, Call},
    outcome::Failure,
};

/// How many of the last executions are asked for before the clock stops.
const LAST: usize = 20;
/// Most jobs of a page.
const PAGE: usize = 500;

/// What was found, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    /// Jobs that a gateway accepted.
    accepted: usize,
    /// Of these, succeeded at the first attempt.
    succeeded_at_once: usize,
    /// Of these, anything else.
    otherwise: usize,
    /// Executions that the worker counted.
    executions: usize,
    /// Accepted jobs that were executed more than once.
    executed_again: usize,
    /// Accepted jobs that were never executed.
    never_executed: usize,
    /// Executed or listed jobs that nobody submitted.
    strangers: usize,
    /// Jobs that had not ended yet when all executions had been counted and the clock had stopped.
    late: usize,
    /// Accepted jobs that the list does not show. They were read one by one.
    unlisted: usize,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Succeeded at its first attempt.
    AtOnce,
    /// Any other end, or more than one attempt.
    Otherwise,
    NotYet,
}

impl End {
    fn of(job: &Value) -> End {
        match (&job["done"], job["state"] == "succeeded" && job["attempt"] == 1) {
            (Value::Bool(true), true) => End::AtOnce,
            (Value::Bool(true), false) => End::Otherwise,
            _ => End::NotYet,
        }
    }
}

impl Verdict {
    /// Reads every job of the topic and every line of the tally. Jobs that have not ended yet, as
    /// happens when a process died on the way, are waited for.
    pub(super) async fn reach(
        api: &Api,
        topic: &str,
        accepted: &HashSet<JobId>,
        tally: &Path,
        patience: Duration,
    ) -> anyhow::Result<Verdict> {
        let mut listed = list(api, topic, accepted.len()).await?;
        let unlisted: Vec<JobId> = accepted.iter().filter(|job| !listed.contains_key(job)).copied().collect();
        let late: Vec<JobId> = listed.iter().filter(|(_, end)| **end == End::NotYet).map(|(job, _)| *job).collect();
        let limit = Instant::now() + patience;
        for job in late.iter().chain(&unlisted) {
            listed.insert(*job, until_done(api, *job, limit).await?);
        }
        let executed = executions(&fs::read_to_string(tally)?);
        Ok(Verdict { late: late.len(), unlisted: unlisted.len(), ..Verdict::judge(accepted, &listed, &executed) })
    }

    fn judge(accepted: &HashSet<JobId>, listed: &HashMap<JobId, End>, executed: &HashMap<JobId, usize>) -> Verdict {
        let times = |job: &JobId| executed.get(job).copied().unwrap_or_default();
        let fine = accepted.iter().filter(|job| listed.get(job) == Some(&End::AtOnce)).count();
        let known: HashSet<&JobId> = listed.keys().chain(executed.keys()).collect();
        Verdict {
            accepted: accepted.len(),
            succeeded_at_once: fine,
            otherwise: accepted.len() - fine,
            executions: executed.values().sum(),
            executed_again: accepted.iter().filter(|job| times(job) > 1).count(),
            never_executed: accepted.iter().filter(|job| times(job) == 0).count(),
            strangers: known.into_iter().filter(|job| !accepted.contains(job)).count(),
            ..Verdict::default()
        }
    }

    /// Whether everything went as promised.
    pub(super) fn is_exact(&self) -> bool {
        self.succeeded_at_once == self.accepted
            && self.executions == self.accepted
            && (self.executed_again, self.never_executed, self.strangers, self.unlisted) == (0, 0, 0, 0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.late > 0 {
            writeln!(f, "{} jobs had not ended when the clock stopped, and were waited for", self.late)?;
        }
        if self.is_exact() {
            return write!(f, "exact: {} accepted, each succeeded and was started exactly once", self.accepted);
        }
        write!(
            f,
            "NOT exact: {} accepted; {} succeeded at the first attempt, {} did not; {} executions counted, \
             {} jobs more than once, {} never; {} strangers; {} not in the list",
            self.accepted,
            self.succeeded_at_once,
            self.otherwise,
            self.executions,
            self.executed_again,
            self.never_executed,
            self.strangers,
            self.unlisted
        )
    }
}

/// Waits until the tally has so many lines; `false` if it stood still for longer than `patience`.
pub(super) async fn until_counted(
    tally: &Path,
    jobs: u64,
    patience: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<bool> {
    let mut file = fs::File::open(tally)?;
    let (mut lines, mut buffer, mut moved) = (0, Vec::new(), Instant::now());
    while lines < jobs {
        sleep(Duration::from_millis(20)).await;
        buffer.clear();
        file.read_to_end(&mut buffer)?;
        if !buffer.is_empty() {
            lines += buffer.iter().filter(|&&byte| byte == b'\n').count() as u64;
            moved = Instant::now();
            bar.set_position(lines);
        } else if moved.elapsed() > patience {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits until the jobs that were executed last are settled too.
pub(super) async fn until_settled(api: &Api, tally: &Path, patience: Duration) -> anyhow::Result<()> {
    let limit = Instant::now() + patience;
    for job in last(tally)? {
        until_done(api, job, limit).await?;
    }
    Ok(())
}

/// How the job ended, or that it had not by then.
async fn until_done(api: &Api, job: JobId, limit: Instant) -> anyhow::Result<End> {
    loop {
        let left = limit.saturating_duration_since(Instant::now()).min(Duration::from_secs(5));
        let call = Call::get(format!("/jobs/{job}")).query("wait_ms", left.as_millis().to_string()).waits(left);
        let end = End::of(&api.call(&call).await.map_err(Failure::from)?.value);
        if end != End::NotYet || left.is_zero() {
            return Ok(end);
        }
    }
}

fn last(tally: &Path) -> anyhow::Result<Vec<JobId>> {
    let mut file = fs::File::open(tally)?;
    // A line has an id, an attempt and a fence: never more than 100 bytes.
    let start = file.metadata()?.len().saturating_sub(LAST as u64 * 100);
    file.seek(SeekFrom::Start(start))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let jobs = text.lines().rev().take(LAST).filter_map(|line| line.split(' ').next()?.parse().ok());
    Ok(jobs.collect())
}

/// How often each job was executed.
fn executions(tally: &str) -> HashMap<JobId, usize> {
    let mut times = HashMap::new();
    for job in tally.lines().filter_map(|line| line.split(' ').next()?.parse::<JobId>().ok()) {
        *times.entry(job).or_default() += 1;
    }
    times
}

/// Every job of the topic, and how it ended.
async fn list(api: &Api, topic: &str, enough: usize) -> anyhow::Result<HashMap<JobId, End>> {
    let mut jobs = HashMap::with_capacity(enough);
    let mut cursor: Option<String> = None;
    loop {
        let mut call = Call::get("/jobs").query("topic", topic).query("limit", PAGE.to_string());
        if let Some(cursor) = &cursor {
            call = call.query("cursor", cursor);
        }
        let page = api.call(&call).await.map_err(Failure::from)?.value;
        for job in page["items"].as_array().context("the answer has no items")? {
            let id: JobId = job["id"].as_str().and_then(|id| id.parse().ok()).context("a job without an id")?;
            jobs.insert(id, End::of(job));
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        // Older jobs of the tenant are none of ours.
        if cursor.is_none() || jobs.len() >= enough {
            return Ok(jobs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> [JobId; 3] {
        [1, 2, 3].map(JobId::mint)
    }

    #[test]
    fn exact_means_each_job_once_and_no_other() {
        let [a, b, stranger] = jobs();
        let accepted = HashSet::from([a, b]);
        let fine = HashMap::from([(a, End::AtOnce), (b, End::AtOnce)]);
        let once = HashMap::from([(a, 1), (b, 1)]);
        assert!(Verdict::judge(&accepted, &fine, &once).is_exact());

        let twice = HashMap::from([(a, 2), (b, 1)]);
        assert!(!Verdict::judge(&accepted, &fine, &twice).is_exact());
        let missing = HashMap::from([(a, 1)]);
        assert!(!Verdict::judge(&accepted, &fine, &missing).is_exact());
        let retried = HashMap::from([(a, End::AtOnce), (b, End::Otherwise)]);
        assert!(!Verdict::judge(&accepted, &retried, &once).is_exact());
        let one_more = HashMap::from([(a, 1), (b, 1), (stranger, 1)]);
        assert!(!Verdict::judge(&accepted, &fine, &one_more).is_exact());
        assert!(!Verdict::judge(&accepted, &HashMap::from([(a, End::AtOnce)]), &once).is_exact());
    }

    #[test]
    fn the_tally_is_read_by_job() {
        let [a, b, _] = jobs();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tally");
        fs::write(&file, format!("{a} 1 7\n{b} 1 8\n{a} 2 9\n")).unwrap();
        assert_eq!(executions(&fs::read_to_string(&file).unwrap()), HashMap::from([(a, 2), (b, 1)]));
        assert_eq!(last(&file).unwrap(), [a, b, a]);
    }
}
