//! Ended runs leave after their time, with their timelines and lists, unless another run needs them.

use std::time::Duration;

use muster_domain::RunId;
use muster_engine::run::{Again, RunState};
use muster_runs::{AGE_FIELDS, Rerun, run_age};
use muster_store::{LEADER_TTL, LeaderLock, Lease, LeaseKeeper, RunRetentionWalk, RunsRetained};
use muster_testkit::until;
use serde_json::json;

use crate::stack::{SOON, Stack};

const AT_ONCE: Duration = Duration::from_micros(1);

/// One whole round.
async fn round(stack: &Stack, lease: &Lease, walk: &mut RunRetentionWalk, keep: Duration) -> RunsRetained {
    let mut all = RunsRetained::default();
    loop {
        let store = &stack.runs.flow.store;
        let done = store.retain_runs(lease, walk, keep, 100, &AGE_FIELDS, &run_age).await.unwrap();
        assert_eq!(done.unreadable, 0);
        (all.runs, all.listings, all.looked) =
            (all.runs + done.runs, all.listings + done.listings, all.looked + done.looked);
        if done.passed {
            return RunsRetained { next: done.next, ..all };
        }
    }
}

async fn is_stored(stack: &Stack, id: RunId) -> bool {
    let timeline = stack.redis.cli(&["EXISTS", &format!("muster:wf:timeline:{id}")]).await;
    let stored = stack.runs.version(id).await.unwrap().is_some();
    assert_eq!(timeline == "1", stored, "a run and its timeline leave together");
    stored
}

async fn judge(stack: &Stack, lease: &Lease) {
    let mut walk = RunRetentionWalk::new();
    stack.define("echo", "steps: [{id: a, job: {topic: echo, payload: 1}}]\n").await;
    stack.define("above", "steps: [{id: sub, workflow: {name: echo}}]\n").await;
    let steps = "steps:\n\
                 \x20 - {id: a, job: {topic: echo, payload: 1}}\n\
                 \x20 - {id: b, needs: [a], wait_signal: {name: go, timeout_ms: 600000}}\n";
    stack.define("signal", steps).await;

    let plain = stack.run("echo", json!({})).await;
    let above = stack.run("above", json!({})).await;
    let old = stack.run("signal", json!({})).await;
    let living = stack.run("signal", json!({})).await;
    stack.signal(old, "go").await;
    stack.ended(plain, RunState::Succeeded).await;
    stack.ended(above, RunState::Succeeded).await;
    let kept = stack.ended(old, RunState::Succeeded).await;
    stack.step(living, "b", "running").await;
    let again = Again::From("b".into());
    let rerun = RunId::mint(5);
    let wish = Rerun {
        id: rerun,
        again,
        version: None,
        input: None,
        principal: "test".into(),
        topics: Vec::new(),
        hash: None,
    };
    let plan = stack.runs.plan_rerun(&kept, &wish).await.unwrap();
    stack.runs.rerun(&kept, &wish, plan).await.unwrap();
    stack.step(rerun, "b", "running").await;

    let long = Duration::from_secs(3600);
    let done = round(stack, lease, &mut walk, long).await;
    assert_eq!((done.runs, done.looked), (0, 0), "too young to be looked at");
    assert!(done.next.is_some_and(|next| next > Duration::from_secs(1800)), "{:?}", done.next);

    let mut walk = RunRetentionWalk::new();
    let mut deleted = 0;
    until(SOON, "the ended runs to leave", async || {
        deleted += round(stack, lease, &mut walk, AT_ONCE).await.runs;
        (deleted == 3).then_some(())
    })
    .await;
    assert!(!is_stored(stack, plain).await && !is_stored(stack, above).await, "its sub-run was the third");
    assert!(is_stored(stack, living).await && is_stored(stack, rerun).await, "they have not ended");
    assert!(is_stored(stack, old).await, "the rerun needs its results");

    for id in [rerun, living] {
        stack.signal(id, "go").await;
        stack.ended(id, RunState::Succeeded).await;
    }
    until(SOON, "the rerun to leave, and then the run that it needed", async || {
        deleted += round(stack, lease, &mut walk, AT_ONCE).await.runs;
        (deleted == 6).then_some(())
    })
    .await;
    assert!(!is_stored(stack, old).await);

    // Lists of the last minutes stay, because runs may still be added. An old one leaves.
    let lists = stack.redis.cli(&["--raw", "KEYS", "muster:idx:run:default:[0-9]*"]).await;
    for list in lists.lines() {
        let (tenant, span) = list.rsplit_once(':').unwrap();
        let span = span.parse::<u32>().unwrap() - 10;
        stack.redis.cli(&["RENAME", list, &format!("{tenant}:{span}")]).await;
        stack.redis.cli(&["ZADD", "muster:idx:run:default:buckets", &span.to_string(), &span.to_string()]).await;
    }
    let mut walk = RunRetentionWalk::new();
    let done = round(stack, lease, &mut walk, AT_ONCE).await;
    assert_eq!(done.listings, lists.lines().count() as u64);
    assert_eq!(stack.redis.cli(&["--raw", "KEYS", "muster:idx:run:default:[0-9]*"]).await.trim(), "");
}

#[tokio::test]
async fn ended_runs_leave_after_their_time_unless_another_run_needs_them() {
    let stack = Stack::start().await;
    let keeper = LeaseKeeper::new(stack.runs.flow.store.clone(), LeaderLock::Retention, "test", LEADER_TTL);
    let judged = async {
        let lease = until(SOON, "the lease", async || keeper.lease()).await;
        judge(&stack, &lease).await;
    };
    tokio::select! {
        () = keeper.run() => unreachable!("it keeps the lease"),
        () = judged => {}
    }
}
