//! The cost of the loops for a stack that only waits: the same with ten times as many jobs, and the same again when
//! all of them have ended. Redis itself counts the commands, because a count does not depend on the machine.

use std::{process::Command, time::Duration};

use muster_domain::{Tenant, Topic};
use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::json;

const LONG: Duration = Duration::from_secs(300);
const FEW: usize = 3_000;
const MANY: usize = 10 * FEW;
/// By then all jobs have been looked at once.
const FIRST_LOOKS: Duration = Duration::from_secs(40);
/// Several ticks of every loop.
const WATCHED: Duration = Duration::from_secs(12);

/// The number of commands that Redis has executed so far.
fn commands(stack: &Stack) -> u64 {
    let mut ask = Command::new("redis-cli");
    ask.arg("-u").arg(stack.state().redis_url).args(["INFO", "commandstats"]);
    let said = ask.output().expect("redis-cli").stdout;
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    String::from_utf8_lossy(&said).lines().filter_map(calls).sum()
}

/// The number of commands that Redis executes while there are no requests.
async fn watched(stack: &Stack) -> u64 {
    let before = commands(stack);
    tokio::time::sleep(WATCHED).await;
    commands(stack) - before
}

/// The same, measured again while the number is not below `below`. Late work on a busy machine, such as first looks,
/// passes; the cost of the loops stays.
async fn settled(stack: &Stack, below: u64) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..5 {
        least = least.min(watched(stack).await);
        if least < below {
            break;
        }
    }
    least
}

/// Runs all waiting jobs, and stops the workers when they have ended.
async fn all_end(stack: &Stack, store: &muster_store::Store, topic: &str, n: usize) {
    let runs = Executions::default();
    let crew = ["w1", "w2"].map(|name| {
        runs.worker(stack, Setup { slots: 64, ..Setup::new(name, topic) }, |_, _| async { Ok(json!(null)) })
    });
    until(LONG, "all of them to end", async || {
        let homes = store.count_homes().await.ok()?;
        (runs.all().len() >= n && homes == 0).then_some(())
    })
    .await;
    for worker in crew {
        worker.drain().await;
    }
}

#[tokio::test]
async fn ten_times_the_waiting_jobs_cost_the_loops_no_more_nor_do_as_many_that_have_ended() {
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_SCRUB_INTERVAL", "2s")).await;
    let (gateway, store) = (stack.gateway(1), stack.store().await);
    let (lane, job) = ((Tenant::default(), Topic::parse("rest").unwrap().into()), json!({"topic": "rest"}));
    // Use a separate topic: the window that fast workers leave behind would hold most of the jobs that should wait.
    super::pour(&gateway, FEW, &json!({"topic": "before"})).await;
    all_end(&stack, &store, "before", FEW).await;
    let few_ended = watched(&stack).await;
    let mut waits: Vec<u64> = Vec::new();
    for all in [FEW, MANY] {
        let missing = all - waiting(&store, &lane).await;
        super::pour(&gateway, missing, &job).await;
        until(LONG, "all of them to wait", async || (waiting(&store, &lane).await + 1_000 > all).then_some(())).await;
        // Each job is looked at once, half a minute after its submit, and then not for a long time.
        tokio::time::sleep(FIRST_LOOKS).await;
        let below = waits.first().map_or(u64::MAX, |few| few * 3);
        waits.push(settled(&stack, below).await);
    }
    all_end(&stack, &store, "rest", MANY).await;
    let many_ended = settled(&stack, few_ended * 3 / 2).await;
    let costs =
        format!("commands in {WATCHED:?}, {FEW} against {MANY}: waiting {waits:?}, ended {few_ended} {many_ended}");
    eprintln!("{costs}");
    assert!(few_ended > 100, "the loops do turn: {costs}");
    // Any cost per job would be ten times as high.
    assert!(waits[1] < waits[0] * 3, "{costs}");
    assert!(many_ended * 2 < few_ended * 3, "{costs}");
}

async fn waiting(store: &muster_store::Store, lane: &(Tenant, muster_domain::Line)) -> usize {
    let lens = store.queue_lens(std::slice::from_ref(lane)).await.unwrap_or_default();
    usize::try_from(lens.into_iter().sum::<u64>()).expect("a length")
}
