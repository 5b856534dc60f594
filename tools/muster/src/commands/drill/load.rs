//! The load of a drill: short, long, failing, deadly and cancelled jobs, some with one attempt only,
//! some with deadlines, time-outs, delays, idempotency and concurrency keys, alone and in batches, to every
//! gateway. Notes every answer in the ledger, and follows every accepted job until it sees its end.

use std::{cell::RefCell, collections::BTreeSet, future::Future, pin::Pin, time::Duration};

use anyhow::Context;
use fastrand::Rng;
use futures_util::{StreamExt, stream, stream::FuturesUnordered};
use indicatif::ProgressBar;
use muster_domain::{Time, time::wall_clock};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::{
    ledger::{Accepted, Ledger},
    reported,
};
use crate::{
    api::{Api, Call, CallError},
    commands::worker::drilled::Part,
    outcome::Failure,
};

/// Between two rounds of looking at jobs that have not ended.
const ROUND: Duration = Duration::from_millis(250);
/// Jobs that one round asks about at most.
const ROUND_JOBS: usize = 200;
/// Without a terminal: how often progress is told.
const QUIET: Duration = Duration::from_secs(15);
/// Questions under way at once.
const AT_ONCE: usize = 8;

/// Concurrency keys under which some of the short jobs run, one at a time.
const KEYS: [&str; 3] = ["drill-a", "drill-b", "drill-c"];
/// One of so many jobs has such a key.
const KEYED: u64 = 10;

/// What kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// All of it.
    Everything,
    /// Short and long ones that succeed if nothing is in their way, every submit with a key.
    Plain,
}

/// One submit, and what else is done to its job.
#[derive(Clone, Debug)]
struct Plot {
    body: Value,
    key: Option<String>,
    /// The same submit again, after so long.
    again: Option<Duration>,
    cancel: Option<Duration>,
}

/// Makes jobs, one like the other for the same seed.
struct Author {
    rng: Rng,
    run: String,
    made: u64,
    replicated: bool,
    mix: Mix,
}

impl Author {
    fn next(&mut self) -> Plot {
        match self.mix {
            Mix::Everything => self.anything(),
            Mix::Plain => self.plain(),
        }
    }

    fn plain(&mut self) -> Plot {
        self.made += 1;
        let long = self.rng.u32(..10) == 0;
        let (topic, ms) =
            if long { ("drill.long", self.rng.u64(1_000..=4_000)) } else { ("drill.short", self.rng.u64(0..=30)) };
        let mut body = json!({ "topic": topic, "payload": Part { ms, ..Part::default() } });
        if self.replicated {
            body["durability"] = "replicated".into();
        }
        Plot { body, key: Some(format!("drill-{}-{}", self.run, self.made)), again: None, cancel: None }
    }

    fn anything(&mut self) -> Plot {
        let rng = &mut self.rng;
        self.made += 1;
        let (topic, part) = match rng.u32(..100) {
            0..=61 => ("drill.short", Part { ms: rng.u64(0..=30), ..Part::default() }),
            62..=79 => ("drill.long", Part { ms: rng.u64(1_000..=9_000), ..Part::default() }),
            80..=95 => {
                let failures = rng.u32(1..=4);
                let permanent = rng.u32(..4) == 0;
                ("drill.flaky", Part { ms: rng.u64(0..=200), failures, permanent, ..Part::default() })
            }
            _ => ("drill.deadly", Part { ms: rng.u64(0..=200), crashes: rng.u32(1..=3), ..Part::default() }),
        };
        let most = if rng.u32(..5) == 0 { 1 } else { rng.u32(2..=4) };
        let mut body = json!({
            "topic": topic,
            "payload": part,
            "retry": { "max_attempts": most, "backoff": { "initial_ms": 200, "factor": 2, "max_ms": 2_000 } },
        });
        match rng.u32(..20) {
            0 => body["expire_in_ms"] = rng.u64(2_000..=30_000).into(),
            1 => body["start_within_ms"] = rng.u64(500..=10_000).into(),
            2 => body["timeout_ms"] = rng.u64(500..=6_000).into(),
            3 => body["delay_ms"] = rng.u64(100..=10_000).into(),
            4 => body["on_lost_lease"] = "fail".into(),
            5 => body["priority"] = ["critical", "high", "low"][rng.usize(..3)].into(),
            _ => (),
        }
        if topic == "drill.short" && self.made.is_multiple_of(KEYED) {
            let turn = usize::try_from(self.made / KEYED).unwrap_or_default();
            body["concurrency_key"] = KEYS[turn % KEYS.len()].into();
        }
        if self.replicated {
            body["durability"] = "replicated".into();
        }
        let key = rng.bool().then(|| format!("drill-{}-{}", self.run, self.made));
        let again = (key.is_some() && rng.u32(..5) == 0).then(|| Duration::from_millis(rng.u64(0..=4_000)));
        let cancel = (rng.u32(..15) == 0).then(|| Duration::from_millis(rng.u64(0..=4_000)));
        Plot { body, key, again, cancel }
    }
}

/// What the load is.
pub(super) struct Load<'a> {
    pub(super) apis: &'a [Api],
    pub(super) ledger: &'a RefCell<Ledger>,
    pub(super) seed: u64,
    pub(super) per_s: u32,
    /// Ask that a replica has each job before it is answered.
    pub(super) replicated: bool,
    pub(super) mix: Mix,
}

type Under<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Load<'_> {
    /// Submits until told to end, and sees every submit through that it began.
    pub(super) async fn run(&self, end: impl Future<Output = ()>) {
        let mut author = Author {
            rng: Rng::with_seed(self.seed),
            run: format!("{:x}", wall_clock().0),
            made: 0,
            replicated: self.replicated,
            mix: self.mix,
        };
        let mut end = std::pin::pin!(end);
        let mut tick = interval(Duration::from_secs(1) / self.per_s.max(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut under: FuturesUnordered<Under<'_>> = FuturesUnordered::new();
        let mut turn = 0;
        loop {
            tokio::select! {
                () = &mut end => break,
                _ = tick.tick() => {
                    turn += 1;
                    let api = turn % self.apis.len();
                    // Now and then a batch.
                    if self.mix == Mix::Everything && author.rng.u32(..100) == 0 {
                        let plots: Vec<Plot> = (0..20).map(|_| author.next()).collect();
                        under.push(Box::pin(self.batch(api, plots)));
                    } else {
                        under.push(Box::pin(self.one(api, author.next())));
                    }
                }
                Some(()) = under.next(), if !under.is_empty() => (),
            }
        }
        while under.next().await.is_some() {}
    }

    /// One job more; its id.
    pub(super) async fn submit(&self, mut body: Value) -> anyhow::Result<String> {
        if self.replicated {
            body["durability"] = "replicated".into();
        }
        let key = format!("drill-{:x}", fastrand::u128(..));
        let call = Call::post("/jobs", body.to_string()).idempotency_key(key);
        let asked = wall_clock();
        let answer = self.apis[0].call(&call).await.map_err(Failure::from)?;
        self.noted(asked, Ok(answer.value)).context("the answer has no job id")
    }

    /// One more job under each concurrency key: a slot that was left behind would keep it from ever ending.
    pub(super) async fn use_every_slot(&self) -> anyhow::Result<()> {
        for key in KEYS {
            self.submit(json!({ "topic": "drill.short", "payload": Part::default(), "concurrency_key": key })).await?;
        }
        Ok(())
    }

    async fn one(&self, api: usize, plot: Plot) {
        let submit = |n: usize| {
            let call = Call::post("/jobs", plot.body.to_string());
            let call = match &plot.key {
                Some(key) => call.idempotency_key(key),
                None => call,
            };
            async move {
                let asked = wall_clock();
                self.noted(asked, self.apis[n % self.apis.len()].call(&call).await.map(|answer| answer.value))
            }
        };
        let Some(id) = submit(api).await else { return };
        if let Some(wait) = plot.again {
            sleep(wait).await;
            let other = submit(api + 1).await;
            self.ledger.borrow_mut().split.extend(other.filter(|other| *other != id).map(|other| (id.clone(), other)));
        }
        if let Some(wait) = plot.cancel {
            sleep(wait).await;
            self.cancel(api, &id).await;
        }
    }

    async fn batch(&self, api: usize, plots: Vec<Plot>) {
        let item = |plot: &Plot| {
            let mut body = plot.body.clone();
            if let Some(key) = &plot.key {
                body["idempotency_key"] = key.as_str().into();
            }
            body
        };
        let items: Vec<Value> = plots.iter().map(item).collect();
        let call = Call::post("/jobs/batch", json!({ "items": items }).to_string());
        let asked = wall_clock();
        match self.apis[api].call(&call).await {
            Ok(answer) => {
                for item in answer.value["items"].as_array().into_iter().flatten() {
                    let job = &item["job"];
                    match job["id"].as_str() {
                        Some(_) => drop(self.noted(asked, Ok(job.clone()))),
                        None => {
                            let code = item["error"]["code"].as_str().unwrap_or("unknown").to_owned();
                            *self.ledger.borrow_mut().refused.entry(code).or_default() += 1;
                        }
                    }
                }
            }
            Err(error) => drop(self.noted(asked, Err(error))),
        }
    }

    /// Writes an answer down; the id if the job was accepted.
    fn noted(&self, asked: Time, answer: Result<Value, CallError>) -> Option<String> {
        let mut ledger = self.ledger.borrow_mut();
        match answer {
            Ok(job) => {
                let id = job["id"].as_str()?.to_owned();
                let replicated = job["durability"] == "replicated";
                let between = (asked, wall_clock());
                ledger.accepted.entry(id.clone()).or_insert(Accepted { between, replicated });
                Some(id)
            }
            Err(CallError::Refused(problem)) => {
                *ledger.refused.entry(problem.code.clone()).or_default() += 1;
                None
            }
            Err(CallError::Unreachable { .. }) => {
                ledger.unanswered += 1;
                None
            }
        }
    }

    /// Calls a job off. That it had ended already is an answer like any other.
    async fn cancel(&self, api: usize, id: &str) {
        let call = Call::post(format!("/jobs/{id}/cancel"), r#"{"reason":"drill"}"#).repeatable();
        if let Ok(answer) = self.apis[api].call(&call).await {
            self.see(id, &answer.value);
        }
    }

    fn see(&self, id: &str, job: &Value) -> bool {
        let ended = job["done"] == true;
        if let Some(state) = reported::state(&job["state"]).ok().filter(|_| ended) {
            self.ledger.borrow_mut().saw_end(id, state, reported::moment(&job["finished_at"]));
        }
        ended
    }

    /// Looks at jobs that have not ended, for as long as it is polled.
    pub(super) async fn follow(&self, bar: &ProgressBar) {
        let (mut last, mut said) = (String::new(), Instant::now());
        loop {
            sleep(ROUND).await;
            let open = self.ledger.borrow().open();
            // Round and round: those behind the last one come first.
            let (after, before): (BTreeSet<_>, BTreeSet<_>) = open.into_iter().partition(|id| *id > last);
            let some: Vec<String> = after.into_iter().chain(before).take(ROUND_JOBS).collect();
            last = some.last().cloned().unwrap_or_default();
            self.look(some).await;
            let (accepted, ended) = self.seen();
            bar.set_message(format!("{accepted} accepted, {ended} ended"));
            if bar.is_hidden() && said.elapsed() > QUIET {
                said = Instant::now();
                eprintln!("          {accepted} accepted, {ended} ended");
            }
        }
    }

    async fn look(&self, ids: Vec<String>) {
        let one = |(n, id): (usize, String)| async move {
            if let Ok(Some(job)) = reported::get(&self.apis[n % self.apis.len()], format!("/jobs/{id}")).await {
                self.see(&id, &job);
            }
        };
        stream::iter(ids.into_iter().enumerate()).for_each_concurrent(AT_ONCE, one).await;
    }

    /// How many were accepted, and how many of these were seen to end.
    pub(super) fn seen(&self) -> (usize, usize) {
        let ledger = self.ledger.borrow();
        let ended = ledger.ends.keys().filter(|id| ledger.accepted.contains_key(*id)).count();
        (ledger.accepted.len(), ended)
    }

    /// Follows every accepted job to its end, unless nothing moves for `patience`.
    pub(super) async fn see_all_end(&self, patience: Duration, bar: &ProgressBar) {
        tokio::select! {
            () = self.all_ended(patience) => (),
            () = self.follow(bar) => (),
        }
    }

    /// Waits until every accepted job was seen to end, or nothing moved for `patience`.
    async fn all_ended(&self, patience: Duration) {
        let (mut ended, mut moved) = (0, Instant::now());
        loop {
            let open = self.ledger.borrow().open();
            let now = self.seen().1;
            if now != ended {
                (ended, moved) = (now, Instant::now());
            }
            if open.is_empty() || moved.elapsed() > patience {
                return;
            }
            sleep(ROUND).await;
        }
    }
}
