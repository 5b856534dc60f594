//! Every place between two writes, with a crash and with a delay of seconds at each. Every job in progress reaches
//! its one end with all its effects, and no attempt runs twice.
//!
//! The table lists each failpoint with the load that brings a process there. One stack runs all rows, each before the
//! previous row has healed; the checks run once, at the end. Where the two writes may go to different nodes, the same
//! is repeated on a cluster of six.

#[path = "failpoints/by_hand.rs"]
mod by_hand;
#[path = "failpoints/checks.rs"]
mod checks;
#[path = "failpoints/loads.rs"]
mod loads;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_bus::subjects;
use muster_domain::{JobId, RunId, State, Tenant, slot::Limit};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Failpoints, Options, Probe, Stack, TestWorker, by_hand::bus_of};
use muster_wire::Body;
use reqwest::Method;

use loads::Load;

/// How long anything without a deliberate wait may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// The same if a lock or a look is involved.
const LONG: Duration = Duration::from_secs(150);

/// What happens at each place.
const WHAT: [&str; 2] = ["kill", "delay:3000"];

/// Longer than any leader's lock holds, and longer than a new home waits for its record: by then the home is gone.
const LONG_DELAY: &str = "delay:35000";

/// Places where a process may be delayed for so long that others take its work for dead.
const SLOW: &[&str] = &["submit.after_home"];

/// Every failpoint, some with several loads. Those whose crashes take longest to heal come first.
const TABLE: &[(&str, Load)] = &[
    ("reoffer.after_apply", Load::LostOffers),
    ("reoffer.after_audit", Load::LostOffers),
    ("resubmit.after_audit", Load::LostSubmits),
    ("slots.after_places", Load::Slots),
    ("slots.after_take", Load::Slots),
    ("slots.after_apply", Load::Slots),
    ("slots.after_free", Load::Slots),
    ("lease.after_note", Load::OverHttp),
    ("lease.after_start", Load::OverHttp),
    ("consult.locked", Load::Asked),
    ("consult.answered", Load::Asked),
    ("deny.after_apply", Load::Asked),
    ("bulk.before_act", Load::Bulk),
    ("bulk.after_audit", Load::Bulk),
    ("bulk.after_act", Load::Bulk),
    ("submit.after_home", Load::Submits),
    ("submit.after_record", Load::Submits),
    ("submit.before_answer", Load::Submits),
    ("cancel.before_apply", Load::Cancels),
    ("cancel.after_apply", Load::Cancels),
    ("cancel.after_forward", Load::Cancels),
    ("cancel.after_audit", Load::Cancels),
    ("cancel.after_home", Load::Forestalled),
    ("cancel.after_create", Load::Forestalled),
    ("retry.after_audit", Load::Retried),
    ("retry.after_submit", Load::Retried),
    ("delete.after_record", Load::Deleted),
    ("act.after_audit", Load::Deleted),
    ("act.after_audit", Load::Keys),
    ("act.after_audit", Load::Drained),
    ("act.after_audit", Load::Bulk),
    ("settings.after_put", Load::Settings),
    ("audit.before_confirm", Load::Export),
    ("dead_message.after_store", Load::Unreadable),
    ("dispatch.after_apply", Load::Jobs),
    ("dispatch.after_offer", Load::Jobs),
    ("start.after_apply", Load::Jobs),
    ("start.before_finish", Load::Senseless),
    ("start.before_answer", Load::Jobs),
    ("settle.after_apply", Load::Jobs),
    ("settle.after_audit", Load::TookTooLong),
    ("settle.after_finish", Load::Jobs),
    ("finish.after_dead_letters", Load::Jobs),
    ("finish.after_runs", Load::OfRun),
    ("finish.before_slots", Load::CancelledOffer),
    ("finish.before_home", Load::Jobs),
    ("wake.after_apply", Load::Jobs),
    ("wake.after_audit", Load::Jobs),
    ("reconciler.begin", Load::Jobs),
    ("look.after_read", Load::Jobs),
    ("look.before_rescore", Load::Jobs),
    ("scrub.begin", Load::Jobs),
    ("scrub.after_audit", Load::Homeless),
    ("reread.after_audit", Load::Forgotten),
    ("reread.after_record", Load::Forgotten),
    ("retention.after_delete", Load::LongAgo),
    ("retention.after_drop", Load::LongAgo),
    ("end.after_apply", Load::OutOfTime),
    ("end.after_audit", Load::OutOfTime),
    ("end.after_finish", Load::OutOfTime),
    ("recall.after_apply", Load::Recall),
    ("recall.after_submit", Load::Recall),
    ("anew.after_apply", Load::HalfAdmitted),
    ("anew.after_apply", Load::HalfPlaced),
    ("hold.after_apply", Load::Crowd),
    ("release.after_claim", Load::Crowd),
    ("release.after_apply", Load::Crowd),
    ("release.after_offer", Load::Crowd),
    ("release.after_forward", Load::Crowd),
];

/// Failpoints between writes that a cluster spreads over its nodes: a job's home, its record, its place in the
/// backlog, its slot, its dead letter and the audit log each have a node of their own, and so has each stream. Those
/// whose crashes take longest to heal come first.
const SPREAD: &[&str] = &[
    "reoffer.after_apply",
    "reoffer.after_audit",
    "resubmit.after_audit",
    "lease.after_note",
    "lease.after_start",
    "slots.after_places",
    "slots.after_take",
    "slots.after_apply",
    "slots.after_free",
    "deny.after_apply",
    "bulk.before_act",
    "bulk.after_audit",
    "bulk.after_act",
    "submit.after_home",
    "submit.after_record",
    "submit.before_answer",
    "cancel.after_apply",
    "cancel.after_forward",
    "cancel.after_audit",
    "cancel.after_home",
    "cancel.after_create",
    "retry.after_audit",
    "retry.after_submit",
    "delete.after_record",
    "act.after_audit",
    "dead_message.after_store",
    "dispatch.after_apply",
    "dispatch.after_offer",
    "start.after_apply",
    "start.before_finish",
    "settle.after_apply",
    "settle.after_audit",
    "settle.after_finish",
    "finish.after_dead_letters",
    "finish.after_runs",
    "finish.before_slots",
    "finish.before_home",
    "scrub.after_audit",
    "reread.after_audit",
    "reread.after_record",
    "retention.after_delete",
    "retention.after_drop",
    "wake.after_apply",
    "wake.after_audit",
    "recall.after_apply",
    "recall.after_submit",
    "end.after_apply",
    "end.after_audit",
    "end.after_finish",
    "anew.after_apply",
    "hold.after_apply",
    "release.after_claim",
    "release.after_apply",
    "release.after_offer",
    "release.after_forward",
];

/// The expected result of a job.
struct Expected {
    /// The row of the table that submitted the job.
    row: String,
    id: String,
    state: &'static str,
    attempts: u64,
    /// How often it ran on a worker of this test; attempts driven by hand do not count.
    runs: usize,
}

/// The end states that watchers received, by job.
type Heard = Arc<Mutex<BTreeMap<String, BTreeSet<State>>>>;

/// The stack, and everything that was requested of it.
struct Ground {
    stack: Stack,
    gateways: [Probe; 2],
    points: Failpoints,
    runs: Executions,
    heard: Heard,
    /// The jobs whose ends the owner of the first shard of runs was told.
    told_runs: Arc<Mutex<HashSet<String>>>,
    /// Jobs of runs in that shard.
    of_runs: Vec<(RunId, JobId)>,
    workers: Vec<TestWorker>,
    jobs: Vec<Expected>,
    /// Submits that no client repeated, by their payload: lost, or run once.
    unanswered: Vec<String>,
    operations: Vec<String>,
    /// Topics with settings, and the bound that was set.
    told: Vec<(String, u64)>,
    /// Concurrency keys, and topics with a limit.
    limits: Vec<Limit>,
    topics: Vec<String>,
    /// Groups of jobs of which only one may run at a time.
    in_turn: Vec<Vec<String>>,
    /// Ended jobs that were retried, and their retries.
    retried: Vec<(String, String)>,
    /// Jobs that ended long ago, with the tenants that had no others.
    removed: Vec<(Tenant, Vec<JobId>)>,
    /// Jobs that ran once, ended badly and were deleted.
    deleted: Vec<String>,
    /// The reasons in the reports of undecodable messages.
    unreadable: Vec<String>,
    /// The names of created keys, and the secret that the last rotation returned.
    keys: Vec<(String, String)>,
}

impl Ground {
    async fn new(cluster: bool) -> Ground {
        Ground::scrubbed(cluster, "1s").await
    }

    /// Starts the stack with this interval between two scrubs.
    async fn scrubbed(cluster: bool, every: &str) -> Ground {
        let points = Failpoints::default();
        let options = Options { cluster, restart_within: Some("200ms"), ..Options::two() };
        let options = options
            .env("MUSTER_FAILPOINTS", points.setting())
            .env("MUSTER_OUTAGE_WAIT", "1s")
            .env("MUSTER_DECIDE_TOPICS", "asked")
            .env("AUDIT_TRANSPORT", "nats")
            .env("MUSTER_LOOP_AUDIT_RELAY_INTERVAL", "1s")
            .env("MUSTER_LOOP_BULK_INTERVAL", "1s")
            .env("MUSTER_LOOP_CONFIG_INTERVAL", "2s")
            .env("MUSTER_LOOP_RETENTION_INTERVAL", "1s")
            .env("MUSTER_LOOP_SCRUB_INTERVAL", every)
            .env("MUSTER_LOOP_REREAD_INTERVAL", "1s");
        let stack = Stack::with(options).await;
        let gateways = [stack.gateway(1), stack.gateway(2)];
        let (heard, told_runs) = (listen(&stack).await, listen_as_owner(&stack).await);
        Ground {
            stack,
            gateways,
            points,
            runs: Executions::default(),
            heard,
            told_runs,
            of_runs: Vec::new(),
            workers: Vec::new(),
            jobs: Vec::new(),
            unanswered: Vec::new(),
            operations: Vec::new(),
            told: Vec::new(),
            limits: Vec::new(),
            topics: Vec::new(),
            in_turn: Vec::new(),
            retried: Vec::new(),
            removed: Vec::new(),
            deleted: Vec::new(),
            unreadable: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Asks one gateway after the other until one answers with this status, as a client that repeats does.
    async fn insist(&self, ask: (Method, &str, &[(&str, &str)], &str), good: u16) -> Answer {
        let (method, path, headers, body) = ask;
        let mut turn = 0;
        until(SOON, &format!("{method} {path}"), async || {
            turn += 1;
            let body = Some(body.as_bytes().to_vec());
            let sent = self.gateways[turn % 2].send(method.clone(), path, headers, body).await;
            let answer = sent.ok()?;
            assert!([good, 503].contains(&answer.status.as_u16()), "{path}: {}", answer.text);
            (answer.status == good).then_some(answer)
        })
        .await
    }

    /// Runs one row, with a crash or a delay.
    async fn play(&mut self, point: &str, load: Load, what: &str) {
        let row = format!("{point} {load:?} {what}").to_lowercase();
        let (before, began) = (self.pids(), std::time::Instant::now());
        self.points.arm(point, what);
        load.bring(self, &row, point).await;
        self.points.has_acted(point).await;
        if what == "kill" {
            self.recovers(&before).await;
        }
        eprintln!("{row}: {:?}", began.elapsed());
    }

    fn expect(&mut self, row: &str, ids: Vec<String>, state: &'static str, attempts: u64, runs: usize) {
        let one = |id| Expected { row: row.to_owned(), id, state, attempts, runs };
        self.jobs.extend(ids.into_iter().map(one));
    }

    fn pids(&self) -> HashSet<i32> {
        let all = self.stack.state().processes.into_iter().filter(|p| p.admin.is_some());
        all.map(|p| p.pid).collect()
    }

    async fn all_are_up(&self) {
        until(SOON, "all replicas to be ready", async || {
            for name in ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "workflow-1", "workflow-2"] {
                if !self.stack.ready(name).await {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    async fn is_succeeded(&self, before: &HashSet<i32>) {
        until(SOON, "a successor", async || (self.pids() != *before).then_some(())).await;
        self.all_are_up().await;
    }

    /// Waits until the crashed process has a successor, and deletes the leaders' locks, so that leaders are elected
    /// at once: no promise depends on these locks.
    async fn recovers(&self, before: &HashSet<i32>) {
        self.is_succeeded(before).await;
        for lock in
            ["muster:reconciler:default", "muster:scheduler:scrub", "muster:scheduler:reread", "muster:dlq:cleanup"]
        {
            self.redis(&["DEL", lock]);
        }
    }

    fn redis(&self, args: &[&str]) -> String {
        let urls = self.stack.state().redis_url;
        let any = urls.split(',').next().expect("an address");
        // `-c`: on a cluster, redis-cli finds the node that has the key.
        let said = Command::new("redis-cli").args(["-c", "-u", any]).args(args).output();
        String::from_utf8(said.expect("redis-cli").stdout).expect("text").trim().to_owned()
    }
}

/// Records every end that watchers receive.
#[expect(clippy::disallowed_methods, reason = "a test's own listener")]
async fn listen(stack: &Stack) -> Heard {
    let bus = bus_of(stack, "watcher").await;
    let mut events = bus.subscribe(&subjects::event(), None).await.expect("a subscription");
    bus.flush(SOON).await;
    let heard = Heard::default();
    let notes = heard.clone();
    tokio::spawn(async move {
        let _bus = bus;
        while let Some(received) = events.next().await {
            let Body::Event(group) = received.body else { continue };
            for item in group.items {
                let state = u8::try_from(item.state).ok().and_then(State::from_code);
                let id = JobId::from_slice(&item.job_id);
                if let (Some(id), Some(state)) = (id, state.filter(|state| state.is_end())) {
                    notes.lock().expect("no panic while noting").entry(id.to_string()).or_default().insert(state);
                }
            }
        }
    });
    heard
}

/// Records every job whose end is told to the owner of the first shard of runs.
#[expect(clippy::disallowed_methods, reason = "a test's own listener")]
async fn listen_as_owner(stack: &Stack) -> Arc<Mutex<HashSet<String>>> {
    let bus = bus_of(stack, "owner").await;
    let mut ends = bus.subscribe(&subjects::job_done(0), None).await.expect("a subscription");
    bus.flush(SOON).await;
    let told = Arc::<Mutex<HashSet<String>>>::default();
    let notes = told.clone();
    tokio::spawn(async move {
        let _bus = bus;
        while let Some(received) = ends.next().await {
            let Body::JobDone(group) = received.body else { continue };
            let ids = group.items.iter().filter_map(|item| JobId::from_slice(&item.job_id));
            notes.lock().expect("no panic while noting").extend(ids.map(|id| id.to_string()));
        }
    });
    told
}

/// Every failpoint that the product's source names, except those of runs: the tests of the workflow service have these.
fn in_the_source() -> BTreeSet<String> {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("a file");
                let names = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
                found.extend(names.map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with("run.")));
            }
        }
    }
    let (root, mut found) = (Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), BTreeSet::new());
    ["crates", "services", "sdk"].iter().for_each(|folder| walk(&root.join(folder), &mut found));
    found
}

#[test]
fn every_failpoint_has_a_row() {
    let each: BTreeSet<String> = TABLE.iter().map(|row| format!("{row:?}")).collect();
    assert_eq!(each.len(), TABLE.len(), "each row once");
    let rows: BTreeSet<String> = TABLE.iter().map(|(point, _)| (*point).to_owned()).collect();
    assert_eq!(in_the_source(), rows, "the failpoints of the source, and the rows of the table");
}

#[tokio::test]
async fn deaths_and_delays_between_any_two_writes_lose_nothing_and_repeat_nothing() {
    let mut ground = Ground::new(false).await;
    ground.begin().await;
    for (point, load) in TABLE {
        for what in WHAT.into_iter().chain(SLOW.contains(point).then_some(LONG_DELAY)) {
            ground.play(point, *load, what).await;
        }
    }
    ground.all_are_up().await;
    checks::all(&ground).await;
}

/// Runs every second row of [`SPREAD`], on six Redis and three NATS nodes.
async fn spread(from: usize) {
    let mut ground = Ground::new(true).await;
    ground.begin().await;
    for point in SPREAD.iter().skip(from).step_by(2) {
        let (_, load) = TABLE.iter().find(|(known, _)| known == point).expect("a row of the table");
        for what in WHAT {
            ground.play(point, *load, what).await;
        }
    }
    ground.all_are_up().await;
    checks::all(&ground).await;
}

// Two tests, because they wait most of the time, and can do so concurrently.
#[tokio::test]
async fn on_a_cluster_too_deaths_and_delays_between_writes_to_different_nodes_lose_nothing() {
    spread(0).await;
}

#[tokio::test]
async fn on_a_cluster_too_the_others_of_them_lose_nothing() {
    spread(1).await;
}

#[tokio::test]
async fn a_job_admitted_anew_runs_soon_though_whoever_did_that_died_of_it() {
    let mut ground = Ground::scrubbed(false, "1h").await;
    // The next leader must not scrub either: only the old entry in the backlog leads to the job.
    ground.redis(&["SET", "muster:scheduler:scrub", "nobody:1"]);
    for load in [Load::HalfAdmitted, Load::HalfPlaced] {
        let (before, row) = (ground.pids(), format!("{load:?}").to_lowercase());
        ground.points.arm("anew.after_apply", "kill");
        load.bring(&mut ground, &row, "anew.after_apply").await;
        ground.points.has_acted("anew.after_apply").await;
        // Two claims are needed, of the old entry and of the new one.
        for job in &ground.jobs {
            ground.gateways[0].ended(&job.id, Duration::from_secs(30)).await;
        }
        ground.is_succeeded(&before).await;
    }
    // The same state on a topic that no longer has a limit.
    ground.queued_anew("unlimited").await;
    let job = ground.jobs.last().expect("a job");
    ground.gateways[0].ended(&job.id, Duration::from_secs(30)).await;
    checks::all(&ground).await;
}
