//! What the stack reports about its jobs, read through the API: every record with its history and home, the list of
//! jobs, the dead letters, the audit log, and whether its hash chain is unbroken. `judge` decides what is wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use muster_domain::{Event, State, Time, audit};
use serde_json::Value;

use super::places::Places;
use crate::{
    api::{Api, Call, CallError},
    outcome::Failure,
};

/// The number of parallel calls.
const AT_ONCE: usize = 16;
/// The number of jobs in a page.
const PAGE: &str = "500";

/// A step of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// None for the submit.
    pub(super) event: Option<Event>,
    pub(super) to: State,
    pub(super) attempt: u32,
    pub(super) at: Time,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = self.event.map_or("submit", Event::as_str);
        write!(f, "{event} → {} (attempt {})", self.to, self.attempt)
    }
}

/// What a handler of the drill puts into its result or error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) attempt: u32,
    pub(super) fence: u64,
}

/// One job, as the stack reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedJob {
    pub(super) state: State,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) finished_at: Option<Time>,
    pub(super) stamp: Option<Stamp>,
    pub(super) history: Vec<Step>,
    /// The job has a home: the reconciler will check it again.
    pub(super) home: bool,
}

/// Everything that the stack reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    pub(super) jobs: BTreeMap<String, ReportedJob>,
    /// How often each job is in the list.
    pub(super) listed: BTreeMap<String, u64>,
    /// How often each job is among the dead letters.
    pub(super) letters: BTreeMap<String, u64>,
    /// The number of dead letters that are unreadable messages.
    pub(super) unreadable: u64,
    /// The audit entries, by the ids of their acts.
    pub(super) acts: BTreeMap<String, Entry>,
    /// Where the hash chain of the audit log is broken.
    pub(super) audit_break: Option<String>,
    /// What is wrong with the gauge of jobs without a home; read last.
    pub(super) gap: Option<String>,
    /// The hash slots of the jobs, if a primary of the cluster was killed.
    pub(super) places: Option<Places>,
}

/// The entries of one act in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of entries.
    pub(super) times: u64,
    pub(super) at: Time,
}

/// Which jobs a drill reads and judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All jobs of the stack, which belongs to the drill.
    Whole,
    /// Only the jobs that the drill submitted: others use the stack too.
    Ours,
}

impl Reported {
    /// Reads these jobs and, of a whole stack, every other job that the list shows.
    pub(super) async fn read(api: &Api, ids: Vec<String>, scope: Scope, bar: &ProgressBar) -> anyhow::Result<Reported> {
        let mut reported = Reported {
            listed: times(pages(api, "/jobs", "job").await?),
            letters: times(pages(api, "/dlq", "job").await?),
            unreadable: times(pages(api, "/dlq", "message").await?).values().sum(),
            acts: pages(api, "/audit", "").await?,
            audit_break: audit_break(api).await?,
            gap: None,
            places: None,
            jobs: BTreeMap::new(),
        };
        if scope == Scope::Ours {
            reported.keep_only(&ids.iter().map(String::as_str).collect());
        }
        let mut all: Vec<String> = ids.into_iter().chain(reported.listed.keys().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        bar.set_length(all.len() as u64);
        let one = |id: String| async move {
            let job = ReportedJob::read(api, &id).await.with_context(|| format!("reading {id}"))?;
            bar.inc(1);
            anyhow::Ok((id, job))
        };
        let read: Vec<_> = stream::iter(all).map(one).buffer_unordered(AT_ONCE).try_collect().await?;
        reported.jobs = read.into_iter().filter_map(|(id, job)| Some((id, job?))).collect();
        Ok(reported)
    }

    /// Drops everything about other jobs. Unreadable messages belong to no job, so they are dropped too.
    fn keep_only(&mut self, ids: &BTreeSet<&str>) {
        self.listed.retain(|id, _| ids.contains(id.as_str()));
        self.letters.retain(|id, _| ids.contains(id.as_str()));
        self.acts.retain(|act, _| act.split(':').nth(1).is_some_and(|id| ids.contains(id)));
        self.unreadable = 0;
    }
}

impl ReportedJob {
    /// The acts of loops in its history: the id of each in the audit log, and its time.
    pub(super) fn acts(&self, id: &str) -> BTreeMap<String, Time> {
        let steps = self.history.windows(2).zip(2..);
        let act = |(pair, version): (&[Step], u32)| {
            audit::action_of(pair[1].event?, pair[0].to).map(|_| (format!("job:{id}:{version}"), pair[1].at))
        };
        steps.filter_map(act).collect()
    }

    /// Reads one job; `None` if there is no record of it.
    async fn read(api: &Api, id: &str) -> anyhow::Result<Option<ReportedJob>> {
        let (job, history, explained) = tokio::try_join!(
            get(api, format!("/jobs/{id}")),
            get(api, format!("/jobs/{id}/history")),
            get(api, format!("/jobs/{id}/explain")),
        )?;
        let (Some(job), Some(history), Some(explained)) = (job, history, explained) else {
            return Ok(None);
        };
        let home = !explained["next_look"].is_null();
        ReportedJob::parse(&job, &history, home).map(Some)
    }

    fn parse(job: &Value, history: &Value, home: bool) -> anyhow::Result<ReportedJob> {
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).context("no number");
        let stamp =
            |value: &Value| Some(Stamp { attempt: number(&value["attempt"]).ok()?, fence: value["fence"].as_u64()? });
        let step = |step: &Value| {
            let name = step["event"].as_str().unwrap_or_default();
            let event = match name {
                "submit" => None,
                other => Some(Event::parse(other).with_context(|| format!("no event {other:?}"))?),
            };
            let at = moment(&step["at"]).context("no time")?;
            anyhow::Ok(Step { event, to: state(&step["state"])?, attempt: number(&step["attempt"])?, at })
        };
        Ok(ReportedJob {
            state: state(&job["state"])?,
            attempt: number(&job["attempt"])?,
            max_attempts: number(&job["max_attempts"])?,
            finished_at: moment(&job["finished_at"]),
            stamp: stamp(&job["result"]).or_else(|| stamp(&job["error"]["details"])),
            history: history["transitions"]
                .as_array()
                .context("no transitions")?
                .iter()
                .map(step)
                .collect::<anyhow::Result<_>>()?,
            home,
        })
    }
}

/// A state by its name.
pub(super) fn state(value: &Value) -> anyhow::Result<State> {
    value.as_str().and_then(State::parse).with_context(|| format!("no state {value}"))
}

/// A time, if there is one.
pub(super) fn moment(value: &Value) -> Option<Time> {
    value.as_str().and_then(Time::parse_rfc3339)
}

/// Reads a resource; `None` if there is none.
pub(super) async fn get(api: &Api, path: String) -> anyhow::Result<Option<Value>> {
    match api.call(&Call::get(path)).await {
        Ok(answer) => Ok(Some(answer.value)),
        Err(CallError::Refused(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(Failure::from(error).into()),
    }
}

/// Verifies the whole hash chain of the audit log; returns where it is broken.
async fn audit_break(api: &Api) -> anyhow::Result<Option<String>> {
    let mut call = Call::get("/audit/verify");
    loop {
        let found = api.call(&call).await.map_err(Failure::from)?.value;
        if found["valid"] != true {
            return Ok(Some(found["broken"].to_string()));
        }
        match found["next_cursor"].as_str() {
            Some(cursor) => call = Call::get("/audit/verify").query("cursor", cursor),
            None => return Ok(None),
        }
    }
}

fn times(found: BTreeMap<String, Entry>) -> BTreeMap<String, u64> {
    found.into_iter().map(|(id, entry)| (id, entry.times)).collect()
}

/// Reads a whole list: the number of entries of each id, and the time of the first.
async fn pages(api: &Api, path: &str, kind: &str) -> anyhow::Result<BTreeMap<String, Entry>> {
    let mut found = BTreeMap::new();
    let mut cursor = None;
    loop {
        let mut call = Call::get(path).query("limit", PAGE);
        if path == "/dlq" {
            call = call.query("kind", kind);
        }
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        let page = api.call(&call).await.map_err(Failure::from)?.value;
        for item in page["items"].as_array().context("the page has no items")? {
            let id = item["job"]["id"].as_str().or(item["id"].as_str()).unwrap_or_default();
            let at = moment(&item["at"]).unwrap_or_default();
            found.entry(id.to_owned()).or_insert(Entry { times: 0, at }).times += 1;
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_other_jobs_is_dropped() {
        let entry = Entry { times: 1, at: Time::default() };
        let counts = || BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]);
        let acts = ["job:a:2", "job:b:2", "topic"].map(|act| (act.to_owned(), entry));
        let mut reported =
            Reported { listed: counts(), letters: counts(), unreadable: 3, acts: acts.into(), ..Reported::default() };
        reported.keep_only(&BTreeSet::from(["a"]));
        assert_eq!(reported.listed.keys().chain(reported.letters.keys()).collect::<Vec<_>>(), ["a", "a"]);
        assert_eq!(reported.acts.keys().collect::<Vec<_>>(), ["job:a:2"]);
        assert_eq!(reported.unreadable, 0);
    }
}
