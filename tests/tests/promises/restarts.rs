//! Every process is restarted under load, one after the other, and no client notices.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use muster_sdk::{Client, ClientError, Job, JobFilter, JobId, JobRequest};
use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack, WorkerProcess};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{LONG, SOON, one_end};

/// The topics: for workers over NATS, for workers over HTTP, and without workers.
const TOPIC: &str = "rolling";
const OVER_HTTP: &str = "rolling.http";
const IDLE: &str = "rolling.idle";
/// How many jobs a worker runs at once, and may have to give back.
const SLOTS: usize = 16;

/// On so many pages of 50 a new job is found, however long the list took: the callers submit 100 jobs a second.
const MOST_PAGES: usize = 40;
/// The time between two submits of a caller.
const PACE: Duration = Duration::from_millis(40);

/// A client: whatever a gateway does, each of its requests succeeds.
struct Caller<'a> {
    client: Client,
    enough: &'a AtomicBool,
}

/// The results of a caller's requests.
#[derive(Default)]
struct Asked {
    ran: Vec<String>,
    cancelled: Vec<String>,
    /// The number of long polls, and of pages of lists.
    waits: usize,
    pages: usize,
}

fn fine<T>(what: &str, answer: Result<T, ClientError>) -> T {
    answer.unwrap_or_else(|error| panic!("a client saw that {what} failed: {error}"))
}

impl Caller<'_> {
    fn goes_on(&self) -> bool {
        !self.enough.load(Ordering::Relaxed)
    }

    async fn submit(&self, topic: &str, ms: u64) -> JobId {
        let request = JobRequest::new(topic).payload(&json!({ "ms": ms })).max_attempts(1);
        fine("a submit", self.client.submit(request).await).job.id
    }

    /// Submits short jobs, and some that outlast the stop of any service; now and then it reads, lists or cancels
    /// one.
    async fn submits(&self) -> Asked {
        let (mut asked, mut pace) = (Asked::default(), tokio::time::interval(PACE));
        while self.goes_on() {
            pace.tick().await;
            let n = asked.ran.len();
            let topic = if n % 3 == 0 { OVER_HTTP } else { TOPIC };
            let id = self.submit(topic, if n % 25 == 7 { 6_000 } else { 5 }).await;
            asked.ran.push(id.to_string());
            match n % 10 {
                0 => drop(fine("a read", self.client.get(id).await)),
                3 => asked.pages += self.lists(id).await,
                6 => asked.cancelled.push(self.calls_off(IDLE).await),
                9 if n % 40 == 9 => asked.cancelled.push(self.calls_off(TOPIC).await),
                _ => (),
            }
        }
        asked
    }

    /// Reads pages of the newest jobs until they show this job: the other callers may have submitted many since. Returns
    /// the number of pages.
    async fn lists(&self, newest: JobId) -> usize {
        let mut pages = self.client.list(JobFilter::new().limit(50));
        for n in 1..=MOST_PAGES {
            let page = fine("a list", pages.next_page().await);
            if page.into_iter().flatten().any(|job: Job| job.id == newest) {
                return n;
            }
        }
        panic!("{newest} is not on the first {MOST_PAGES} pages");
    }

    /// Cancels a job that would otherwise run for long.
    async fn calls_off(&self, topic: &str) -> String {
        let id = self.submit(topic, 120_000).await;
        let job = fine("a cancel", self.client.cancel(id, Some("no longer wanted")).await);
        assert_eq!(job.state, "cancelled", "{id}");
        id.to_string()
    }

    /// Sends one long poll after the other: when a gateway stops, a client waits there.
    async fn waits(&self) -> Asked {
        let mut asked = Asked::default();
        while self.goes_on() {
            let id = self.submit(TOPIC, 2_000).await;
            let job = fine("a wait", self.client.wait(id, LONG).await);
            assert_eq!((job.id, job.state.as_str()), (id, "succeeded"));
            let request = JobRequest::new(OVER_HTTP).payload(&json!({ "ms": 1_000 })).max_attempts(1);
            let job = fine("a submit that waits", self.client.submit_wait(request, SOON / 2).await).job;
            asked.ran.extend([id.to_string(), job.id.to_string()]);
            asked.waits += 2;
        }
        asked
    }
}

/// How often the workers that share this file began each job.
fn counted(file: &Path) -> HashMap<String, usize> {
    let lines = fs::read_to_string(file).unwrap_or_default();
    lines.lines().filter_map(|line| line.split(' ').next()).fold(HashMap::new(), |mut counts, job| {
        *counts.entry(job.to_owned()).or_default() += 1;
        counts
    })
}

#[tokio::test]
async fn a_rolling_restart_under_load_costs_no_attempt_and_fails_no_request() {
    let stack = Stack::with(Options::two()).await;
    let gateways = [1, 2].map(|n| stack.process(&format!("gateway-{n}")).http.unwrap());
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let worker = |id: &str| {
        let setup = Setup { slots: SLOTS, lease: Duration::from_secs(8), ..Setup::new(id, TOPIC) };
        runs.worker(&stack, setup, work)
    };
    let (mut first, mut second) = (worker("w1"), worker("w2"));
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("executions");
    let http_worker = |id: &str| {
        let args = ["--http", "--topic", OVER_HTTP, "--builtin", "drill", "--count-file", lines.to_str().unwrap()];
        let slots = SLOTS.to_string();
        let own = ["--id", id, "--concurrency", &slots, "--lease", "8s", "--drain", "5s"];
        WorkerProcess::start(&stack, &[&args[..], &own].concat())
    };
    let mut over_http = [http_worker("h1"), http_worker("h2")];

    let enough = AtomicBool::new(false);
    // Half of the callers start with one gateway, half with the other.
    let caller = |n: usize| {
        let mut urls = gateways.clone();
        urls.rotate_left(n % 2);
        Caller { client: Client::new(urls, stack.state().api_key).unwrap(), enough: &enough }
    };
    let callers: Vec<Caller<'_>> = (0..6).map(caller).collect();
    let loaded = async || {
        let begun = (runs.all().len(), counted(&lines).len());
        until(SOON, "load", async || {
            (runs.all().len() > begun.0 + 40 && counted(&lines).len() > begun.1 + 20).then_some(())
        })
        .await;
    };
    let restarting = async {
        for name in ["scheduler-1", "gateway-1", "scheduler-2", "gateway-2"] {
            loaded().await;
            let pid = stack.signal(name, Signal::SIGTERM);
            stack.replaced(name, pid).await;
            until(SOON, "it to be ready again", async || stack.ready(name).await.then_some(())).await;
        }
        loaded().await;
        // Workers are restarted too: jobs that they cannot finish during their drain they give back.
        std::mem::replace(&mut first, worker("w3")).drain().await;
        std::mem::replace(&mut second, worker("w4")).drain().await;
        for (worker, id) in over_http.iter_mut().zip(["h3", "h4"]) {
            let mut old = std::mem::replace(worker, http_worker(id));
            old.signal(Signal::SIGTERM);
            let left = old.exited(SOON).await;
            assert!(left.success(), "{id} took over from one that left with {left}: {}", old.log());
            no_call_failed(&old);
        }
        loaded().await;
        enough.store(true, Ordering::Relaxed);
    };
    let (submitters, waiters) = callers.split_at(4);
    let (asked, waited, ()) = tokio::join!(
        join_all(submitters.iter().map(Caller::submits)),
        join_all(waiters.iter().map(Caller::waits)),
        restarting
    );
    over_http.iter().for_each(no_call_failed);
    let (mut ran, mut cancelled, mut waits, mut pages) = (Vec::new(), Vec::new(), 0, 0);
    for of_one in asked.into_iter().chain(waited) {
        ran.extend(of_one.ran);
        cancelled.extend(of_one.cancelled);
        (waits, pages) = (waits + of_one.waits, pages + of_one.pages);
    }
    let load = (ran.len(), cancelled.len(), waits, pages);
    assert!(load.0 > 200 && load.1 > 10 && load.2 > 5 && load.3 > 20, "{load:?} is no load");

    // Each job ends at its first attempt; only jobs that a worker gave back were begun again.
    let gateway = stack.gateway(2);
    for id in &ran {
        let job = one_end(&gateway, id).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    }
    for id in &cancelled {
        let job = one_end(&gateway, id).await;
        assert_eq!(job["state"], "cancelled", "{job}");
    }
    assert!(runs.all().iter().all(|run| run.attempt == 1), "no restart costs an attempt");
    let mut counts = runs.counts();
    counts.extend(counted(&lines));
    let again = ran.iter().filter(|id| counts.get(*id) != Some(&1)).count();
    assert!(again <= 4 * SLOTS, "{again} given back by four workers of {SLOTS} slots");

    // The list has every job once.
    let mut listed = gateway.listed("").await;
    let mut known: Vec<String> = ran.into_iter().chain(cancelled).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

/// The worker logs every call that failed even after repeats.
fn no_call_failed(worker: &WorkerProcess) {
    let log = worker.log();
    for complaint in ["no lease", "leases not extended", "results not reported yet"] {
        assert!(!log.contains(complaint), "{log}");
    }
}
