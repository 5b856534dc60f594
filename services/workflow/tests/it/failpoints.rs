//! Every place between two writes of a run, with a crash and with a delay of seconds at each. Every run ends as its
//! definition says, and every job runs once.
//!
//! Two processes of the service run beside the servers and are started again when they die. A row is a failpoint, a
//! load that brings a process there, and what happens. Rows are played one after the other, each before the previous
//! one has healed; the checks come once, at the end. `MUSTER_RUN_MATRIX=whole` plays every row, as `make soak` does.
//! Otherwise a few are drawn, always the same ones; another `SEED` draws others.

mod loads;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use muster_testkit::until;
use tempfile::TempDir;

use self::loads::{DEFINITIONS, Expected, Load};
use crate::stack::{SOON, Stack};

/// How many rows are drawn.
const DRAWN: usize = 12;
/// How long a crash may take to heal on a busy machine: a dead owner's shards expire first.
const HEALED: Duration = Duration::from_secs(120);
const WHAT: [&str; 2] = ["kill", "delay:3000"];

/// What every run comes to.
const ALL: &[Load] = &[
    Load::Chain,
    Load::Each,
    Load::Kinds,
    Load::Undone,
    Load::Signal,
    Load::Child,
    Load::Cancelled,
    Load::Queued,
    Load::Newest,
    Load::Forgotten,
    Load::SetBack,
];

/// Every failpoint of runs, with the loads that bring a process there.
const TABLE: &[(&str, &[Load])] = &[
    ("run.start.before_create", &[Load::Child, Load::Cancelled]),
    ("run.start.after_create", &[Load::Child, Load::Cancelled]),
    ("run.start.after_publish", &[Load::Child, Load::Cancelled]),
    ("run.operate.before_save", &[Load::Cancelled]),
    ("run.operate.after_save", &[Load::Cancelled]),
    ("run.operate.after_publish", &[Load::Cancelled]),
    ("run.deliver.after_save", &[Load::Child]),
    ("run.restore.before_create", &[Load::Forgotten]),
    ("run.restore.before_save", &[Load::SetBack]),
    ("run.slot.after_take", &[Load::Queued]),
    ("run.slot.after_free", &[Load::Queued, Load::Newest]),
    ("run.slot.after_choice", &[Load::Newest]),
    ("run.turn.before_save", ALL),
    ("run.turn.after_save", ALL),
    ("run.turn.over", ALL),
    ("run.carry.before", ALL),
    ("run.carry.after", ALL),
    ("run.news.before_ack", ALL),
    ("run.look.before_rescore", ALL),
    ("run.look.before_drop", ALL),
];

/// The processes of the service, started again when they die, and their failpoints.
struct Fleet {
    orders: TempDir,
    stores: [String; 2],
    processes: Mutex<Vec<(u32, Child)>>,
}

impl Fleet {
    fn new(stack: &Stack) -> Fleet {
        let orders = tempfile::tempdir().unwrap();
        let fleet = Fleet { orders, stores: [stack.redis.url(), stack.nats.url()], processes: Mutex::default() };
        let two = (0..2).map(|n| (0, fleet.spawn(n, 0))).collect();
        *fleet.processes.lock().unwrap() = two;
        fleet
    }

    fn spawn(&self, n: usize, life: u32) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_muster-workflow")]);
        command.args(["--redis-url", &self.stores[0], "--nats-url", &self.stores[1], "--admin-addr", "127.0.0.1:0"]);
        command.args(["--loop-run-reread-interval", "1s"]);
        command.args(["--instance-id", &format!("w{n}-{life}")]);
        command.env("MUSTER_FAILPOINTS", format!("@{}", self.orders.path().display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts those again that have died. Returns how many.
    fn revive(&self) -> usize {
        let mut died = 0;
        for (n, (life, child)) in self.processes.lock().unwrap().iter_mut().enumerate() {
            if child.try_wait().unwrap().is_some() {
                (*life, died) = (*life + 1, died + 1);
                *child = self.spawn(n, *life);
            }
        }
        died
    }

    fn arm(&self, point: &str, what: &str) {
        // Renamed, so that no process reads half an order.
        let draft = self.orders.path().join("draft");
        fs::write(&draft, what).unwrap();
        fs::rename(draft, self.orders.path().join(point)).unwrap();
    }

    /// Waits until a process has come to the failpoint, and for the successor of one that died there.
    async fn acts(&self, stack: &Stack, point: &str, what: &str) {
        let order = self.orders.path().join(point);
        until(HEALED, &format!("somebody to come to {point}"), async || (!order.exists()).then_some(())).await;
        if what == "kill" {
            until(SOON, "the process to be dead", async || (self.revive() > 0).then_some(())).await;
            // The dead owner's shards would expire after a while. No promise depends on these locks.
            let shards = (0..16).map(|shard| format!("{shard:x}")).chain(["replicas".to_owned()]);
            for shard in shards {
                stack.redis.cli(&["DEL", &format!("muster:workflow-engine:reconciler:{shard}")]).await;
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (_, child) in self.processes.lock().unwrap().iter_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The rows to play.
#[expect(clippy::disallowed_methods, reason = "settings of a test")]
fn rows() -> Vec<(&'static str, Load, &'static str)> {
    let all = TABLE.iter().flat_map(|(point, loads)| loads.iter().map(move |load| (*point, *load)));
    let mut rows: Vec<_> = all.flat_map(|(point, load)| WHAT.map(|what| (point, load, what))).collect();
    if std::env::var("MUSTER_RUN_MATRIX").as_deref() == Ok("whole") {
        return rows;
    }
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    eprintln!("SEED={seed}");
    fastrand::Rng::with_seed(seed).shuffle(&mut rows);
    rows.truncate(DRAWN);
    rows
}

/// Every failpoint of runs that the source names.
fn in_the_source() -> BTreeSet<String> {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
                found.extend(names.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("run.")));
            }
        }
    }
    let (root, mut found) = (PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), BTreeSet::new());
    ["crates", "services"].iter().for_each(|folder| walk(&root.join(folder), &mut found));
    found
}

#[test]
fn every_failpoint_of_runs_has_a_row() {
    let rows: BTreeSet<String> = TABLE.iter().map(|(point, _)| (*point).to_owned()).collect();
    assert_eq!(in_the_source(), rows, "the failpoints of the source, and the rows of the table");
}

#[tokio::test]
async fn deaths_and_delays_between_any_two_writes_of_a_run_change_nothing_about_its_end() {
    let stack = Stack::without_workflow().await;
    for (name, yaml) in DEFINITIONS {
        stack.define(name, yaml).await;
    }
    let fleet = Fleet::new(&stack);
    let mut expected = Expected::default();
    for (n, (point, load, what)) in rows().into_iter().enumerate() {
        let (row, began) = (format!("{n} {point} {load:?} {what}"), std::time::Instant::now());
        fleet.arm(point, what);
        tokio::join!(load.bring(&stack, &row, &mut expected), fleet.acts(&stack, point, what));
        eprintln!("{row}: {:?}", began.elapsed());
    }
    for (row, id, state) in &expected.runs {
        until(HEALED, &format!("the run of {row} to end"), async || {
            fleet.revive();
            stack.read(*id).await.run.state().is_end().then_some(())
        })
        .await;
        assert_eq!(stack.read(*id).await.run.state(), *state, "{row}: {:#?}", stack.timeline(*id).await);
    }
    for (row, id, state) in &expected.runs {
        stack.ended(*id, *state).await;
        let timeline = stack.timeline(*id).await;
        let ends = timeline.iter().filter(|line| line.split(' ').next() == Some(state.as_str())).count();
        assert_eq!(ends, 1, "{row} ends once: {timeline:#?}");
    }
    let mut ran = BTreeMap::<String, usize>::new();
    for (_, payload) in stack.executed.lock().unwrap().iter() {
        let name = payload.as_str().or_else(|| payload["row"].as_str()).unwrap_or_default();
        *ran.entry(name.to_owned()).or_default() += 1;
    }
    assert_eq!(ran, expected.jobs, "every job ran once");
    let left = stack.redis.cli(&["--raw", "KEYS", "muster:wf:slots:*"]).await;
    assert_eq!(left.trim(), "", "every slot was given back");
}
