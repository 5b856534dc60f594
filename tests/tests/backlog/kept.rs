//! Jobs that wait for a moment on a hot topic, claimed by the scheduler that enqueues them. If that scheduler dies or
//! stops, the other one releases the jobs soon, each once. Two of each service.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use muster_domain::{Line, Priority, Tenant, Time};
use muster_store::{QueueEntry, Store};
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::hot::{LONG, ended};

/// How long a scheduler's claim on the jobs that it enqueues lasts.
const KEPT: Duration = Duration::from_secs(5);
/// Sooner than a look finds a job that no scheduler releases.
const SOONER: Duration = Duration::from_secs(25);

/// Two schedulers, a worker that starts a few hundred jobs a second, and more jobs than that.
struct Ground {
    stack: Stack,
    gateways: [Probe; 2],
    store: Store,
    runs: Executions,
    ids: RefCell<Vec<String>>,
    enough: AtomicBool,
}

impl Ground {
    async fn new() -> Ground {
        let stack = Stack::with(Options::two()).await;
        let (gateways, store) = ([stack.gateway(1), stack.gateway(2)], stack.store().await);
        let (ids, enough) = (RefCell::default(), AtomicBool::new(false));
        Ground { stack, gateways, store, runs: Executions::default(), ids, enough }
    }

    /// Submits jobs while `trouble` runs: enough of them that all wait for a moment, but not for long. Then all
    /// succeed, each runs once and begins before a look could have found it.
    async fn during(&self, trouble: impl Future<Output = ()>) {
        let setup = Setup { slots: 64, ..Setup::new("w1", "hot") };
        let _worker = self.runs.worker(&self.stack, setup, |_, payload| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(payload)
        });
        let job = json!({"topic": "hot", "retry": {"max_attempts": 1}});
        let [one, two] = &self.gateways;
        let flood = async {
            while !self.enough.load(Ordering::Relaxed) {
                let (a, b) = tokio::join!(one.submit_many(60, &job), two.submit_many(60, &job));
                self.ids.borrow_mut().extend([a, b].concat());
                let ahead = self.ids.borrow().len().saturating_sub(self.runs.all().len());
                tokio::time::sleep(Duration::from_millis(if ahead > 800 { 100 } else { 5 })).await;
            }
        };
        let trouble = async {
            trouble.await;
            self.enough.store(true, Ordering::Relaxed);
        };
        tokio::join!(flood, trouble);

        let all = self.ids.take();
        for job in ended(one, &all).await {
            assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
            assert!(moment(&job, "started_at").since(moment(&job, "created_at")) < SOONER, "{job}");
        }
        let counts = self.runs.counts();
        assert_eq!(counts.len(), all.len());
        assert!(counts.values().all(|n| *n == 1), "each once");
    }

    /// Waits until a scheduler has claimed one of the last jobs.
    async fn somebody_is_kept(&self) {
        until(LONG, "jobs in line that a scheduler keeps", async || {
            let last: Vec<String> = self.ids.borrow().iter().rev().take(40).cloned().collect();
            for id in last {
                let entry = entry_of(&self.gateways[0].job(&id).await);
                let place = self.store.queue_place(&entry).await.ok().flatten();
                let kept_until = place.and_then(|place| place.claimed_until);
                // Compare milliseconds: an answer is no more precise.
                if kept_until.is_some_and(|at| (at.0 / 1_000).abs_diff((entry.since + KEPT).0 / 1_000) <= 1) {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    /// The number of claimed jobs in the backlog.
    fn claimed(&self) -> u64 {
        let url = self.stack.state().redis_url;
        let args = ["-u", &url, "ZCOUNT", "muster:queue:default:hot:normal", "-inf", "(0"];
        let said = std::process::Command::new("redis-cli").args(args).output().expect("redis-cli");
        String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number")
    }
}

fn moment(job: &Value, name: &str) -> Time {
    Time::parse_rfc3339(job[name].as_str().unwrap_or_else(|| panic!("no {name} in {job}"))).expect("a time")
}

fn entry_of(job: &Value) -> QueueEntry {
    QueueEntry {
        tenant: Tenant::default(),
        line: Line::named("hot", "").unwrap(),
        priority: Priority::Normal,
        job: job["id"].as_str().unwrap().parse().unwrap(),
        version: 1,
        since: moment(job, "created_at"),
        limited: false,
    }
}

#[tokio::test]
async fn what_a_scheduler_keeps_in_line_is_released_soon_after_its_death() {
    let ground = Ground::new().await;
    let deaths = async {
        for scheduler in ["scheduler-1", "scheduler-2"] {
            ground.somebody_is_kept().await;
            let old = ground.stack.kill9(scheduler);
            ground.stack.replaced(scheduler, old).await;
        }
    };
    ground.during(deaths).await;
}

#[tokio::test]
async fn a_scheduler_that_stops_gives_back_what_it_keeps_in_line() {
    let ground = Ground::new().await;
    let stop = async {
        ground.somebody_is_kept().await;
        let stop = |name| ground.stack.shut_out(name, Signal::SIGTERM);
        let (one, two) = tokio::join!(stop("scheduler-1"), stop("scheduler-2"));
        assert_eq!(ground.claimed(), 0, "nobody waits for a claim to lapse");
        tokio::join!(one.comes_back(), two.comes_back());
    };
    ground.during(stop).await;
}
