//! Workers that are asked to drain, and a worker that still sends heartbeats while its loop hangs.

use std::{sync::Arc, time::Duration};

use muster_bus::subjects;
use muster_testkit::until;
use muster_tests::{
    Executions, Options, Probe, Setup, Stack, WorkerProcess,
    by_hand::{HandWorker, bus_of},
    pid_in, process_runs,
};
use muster_wire::{
    Body,
    v1::{Heartbeat, Standing, result::Kind},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_secs(60);

async fn seen(gateway: &Probe, worker: &str) -> Option<Value> {
    let list = gateway.get("/workers").await.body;
    list["items"].as_array()?.iter().find(|seen| seen["id"] == worker).cloned()
}

async fn is_seen(gateway: &Probe, worker: &str) {
    until(SOON, &format!("{worker} to be seen"), async || seen(gateway, worker).await).await;
}

#[tokio::test]
async fn a_worker_that_is_told_to_leave_finishes_what_it_runs_and_takes_no_more() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let (runs, gate) = (Executions::default(), Arc::new(Semaphore::new(0)));
    let waits = gate.clone();
    let leaving = Setup { drain: Duration::from_secs(30), ..Setup::new("leaving", "t") };
    let mut leaving = runs.worker(&stack, leaving, move |_, payload| {
        let gate = waits.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(payload)
        }
    });
    let first = one.submit(json!({"topic": "t", "payload": 1})).await;
    runs.reach(1, SOON).await;
    is_seen(&two, "leaving").await;
    let answer = two.post("/workers/leaving/drain", &json!(null)).await;
    assert_eq!((answer.status.as_u16(), answer.field("draining")), (202, &json!(true)), "{}", answer.text);
    until(SOON, "it to be seen draining", async || seen(&one, "leaving").await.filter(|w| w["healthy"] == false)).await;

    let second = one.submit(json!({"topic": "t", "payload": 2})).await;
    let _staying = runs.echo(&stack, "staying", "t");
    assert_eq!(one.ended(&second, SOON).await["worker"], "staying");
    assert_eq!(one.job(&first).await["state"], "running", "what it runs may finish");
    gate.add_permits(1);
    let job = one.ended(&first, SOON).await;
    assert_eq!((&job["state"], &job["attempt"], &job["worker"]), (&json!("succeeded"), &json!(1), &json!("leaving")));
    leaving.left(SOON).await;
    until(SOON, "it to be gone", async || seen(&one, "leaving").await.is_none().then_some(())).await;
}

#[tokio::test]
async fn an_http_worker_hears_it_in_the_open_call_and_with_every_next_one() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let lease = async |gateway: &Probe, request: &str, wait_ms: u64| {
        let body = json!({"worker_id": "h1", "request_id": request, "topics": ["t"], "wait_ms": wait_ms});
        let answer = gateway.post("/worker/lease", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.body
    };
    let told = async {
        is_seen(&two, "h1").await;
        assert_eq!(two.post("/workers/h1/drain", &json!(null)).await.status, 202);
    };
    let (open, ()) = tokio::join!(lease(&one, "r1", 30_000), told);
    assert_eq!(open, json!({"items": [], "drain": true}));
    let id = one.submit(json!({"topic": "t"})).await;
    for (gateway, request) in [(&one, "r2"), (&two, "r3")] {
        assert_eq!(lease(gateway, request, 1_000).await, json!({"items": [], "drain": true}));
    }
    assert_ne!(one.job(&id).await["state"], "running");
    until(SOON, "it to be shown as one that takes no work", async || {
        seen(&two, "h1").await.filter(|worker| worker["healthy"] == false)
    })
    .await;
    assert_eq!(two.post("/workers/nobody/drain", &json!(null)).await.status, 404);
    let other = two.for_tenant("acme");
    assert_eq!(other.post("/workers/h1/drain", &json!(null)).await.status, 404, "another tenant's");
}

#[tokio::test]
async fn a_worker_whose_loop_is_dead_is_shown_unhealthy_and_loses_its_leases() {
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "200ms")).await;
    let gateway = stack.gateway(1);
    let mut hung = HandWorker::on(&stack, "hung", "t").await;
    hung.lease_ms = 2_000;
    let id = gateway.submit(json!({"topic": "t"})).await;
    hung.start_next().await;
    // The heartbeats come from outside the loop and say that the loop does not run; no lease is extended.
    let bus = bus_of(&stack, "hung-heart").await;
    let beat = Heartbeat {
        worker: "hung".into(),
        tenant: "default".into(),
        topics: vec!["t".into()],
        slots: 4,
        busy: 1,
        consuming: false,
        ..Default::default()
    };
    until(SOON, "it to be shown unhealthy", async || {
        bus.broadcast(&subjects::heartbeat(), Body::Heartbeat(beat.clone())).await.unwrap();
        seen(&gateway, "hung").await.filter(|worker| worker["healthy"] == false)
    })
    .await;
    let runs = Executions::default();
    let _well = runs.echo(&stack, "well", "t");
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((&job["state"], &job["attempt"], &job["worker"]), (&json!("succeeded"), &json!(2), &json!("well")));
    let said = gateway.get(&format!("/jobs/{id}/history")).await;
    assert!(said.text.contains("hung"), "{}", said.text);
}

#[tokio::test]
async fn a_worker_whose_loop_hangs_is_shown_unhealthy_by_every_gateway_and_its_job_runs_elsewhere() {
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "200ms")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let mut hung = WorkerProcess::unheard(&stack, "hung", "t");
    let long = one.submit(json!({"topic": "t", "payload": "long"})).await;
    one.reaches(&long, "running", SOON).await;
    for gateway in [&one, &two] {
        until(SOON, "it to be seen well", async || seen(gateway, "hung").await.filter(|w| w["healthy"] == true)).await;
    }
    // More output than fits into the unread pipe: the worker hangs while it logs one of these jobs.
    two.submit_many(60, &json!({"topic": "t", "payload": "loud", "retry": {"max_attempts": 1}})).await;
    let mut last_seen = Vec::new();
    for gateway in [&one, &two] {
        let ill = until(SOON, "it to be shown unhealthy", async || {
            seen(gateway, "hung").await.filter(|worker| worker["healthy"] == false)
        })
        .await;
        last_seen.push(ill["last_seen"].as_str().expect("a moment").to_owned());
    }
    let runs = Executions::default();
    let _well = runs.echo(&stack, "well", "t");
    let job = two.ended(&long, SOON).await;
    assert_eq!((&job["state"], &job["attempt"], &job["worker"]), (&json!("succeeded"), &json!(2), &json!("well")));
    let lost = one.history(&long).await;
    assert_eq!((&lost["attempts"][0]["worker"], &lost["attempts"][1]["worker"]), (&json!("hung"), &json!("well")));
    // The heartbeats go on all the time.
    for (gateway, before) in [&one, &two].into_iter().zip(last_seen) {
        until(SOON, "it to be heard again", async || {
            let now = seen(gateway, "hung").await.expect("its heart beats, so it is not forgotten");
            assert_eq!(now["healthy"], false);
            (now["last_seen"].as_str()? > before.as_str()).then_some(())
        })
        .await;
    }
    assert!(hung.is_alive());
}

#[tokio::test]
async fn no_process_of_a_command_runs_when_its_job_begins_elsewhere() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let (shell, child) = (folder.path().join("shell"), folder.path().join("child"));
    // The command and its child ignore SIGTERM. The child leaves the output alone, so nobody waits for it because of
    // that.
    let deaf = format!(
        "trap '' TERM; (echo $BASHPID > {}; while :; do sleep 1000; done) >&- 2>&- & echo $$ > {}; wait; wait",
        child.display(),
        shell.display()
    );
    let command = format!("exec bash -c '{}'", deaf.replace('\'', "'\\''"));
    for way in [&[][..], &["--http"]] {
        let _ = (std::fs::remove_file(&shell), std::fs::remove_file(&child));
        let args = ["--topic", "deaf", "--id", "leaving", "--drain", "1s", "--exec", &command];
        let mut leaving = WorkerProcess::start(&stack, &[&args, way].concat());
        let id = gateway.submit(json!({"topic": "deaf"})).await;
        let pids = [pid_in(&shell, SOON).await, pid_in(&child, SOON).await];
        leaving.signal(Signal::SIGTERM);
        let runs = Executions::default();
        let _other = runs
            .worker(&stack, Setup::new("other", "deaf"), move |_, _| async move { Ok(json!(pids.map(process_runs))) });
        let job = gateway.ended(&id, SOON).await;
        assert_eq!((&job["state"], &job["worker"]), (&json!("succeeded"), &json!("other")), "{job}");
        assert_eq!(job["result"], json!([false, false]), "which of them still ran {way:?}");
        let events = gateway.history(&id).await["transitions"].to_string();
        assert!(events.contains("release"), "given back, not lost: {events}");
        assert!(leaving.exited(SOON).await.success(), "{}", leaving.log());
    }
}

#[tokio::test]
async fn a_result_counts_though_a_release_of_the_same_attempt_crosses_it() {
    let stack = Stack::start().await;
    let (gateway, runs, gate) = (stack.gateway(1), Executions::default(), Arc::new(Semaphore::new(0)));
    let (waits, bus) = (gate.clone(), bus_of(&stack, "listener").await);
    // There is only one attempt: if it is given back, the job runs again; if it is lost, the job ends.
    let once = |topic: &str| json!({"topic": topic, "payload": 7, "retry": {"max_attempts": 1}});
    let setup = Setup { drain: Duration::ZERO, grace: Duration::from_secs(2), ..Setup::new("leaving", "cross") };
    let leaving = runs.worker(&stack, setup, move |_, payload| {
        let gate = waits.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(payload)
        }
    });
    let ours = gateway.submit(once("cross")).await;
    runs.reach(1, SOON).await;
    let mut hand = HandWorker::on(&stack, "hand", "by-hand").await;
    let theirs = gateway.submit(once("by-hand")).await;
    let attempt = hand.start_next().await;

    // No scheduler settles anything for a while.
    stack.signal("scheduler-1", Signal::SIGSTOP);
    let mut said = bus.subscribe(&subjects::result(), None).await.unwrap();
    bus.flush(SOON).await;
    // The worker has to leave at once and give back its job; at that moment the job is done.
    tokio::join!(leaving.drain(), async { gate.add_permits(1) });
    // Another worker reports both.
    hand.succeed(&attempt, "8").await;
    hand.release(&attempt).await;
    stack.signal("scheduler-1", Signal::SIGCONT);

    for (id, result, worker) in [(&ours, 7, "leaving"), (&theirs, 8, "hand")] {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
        assert_eq!((&job["result"], &job["worker"]), (&json!(result), &json!(worker)), "{job}");
        let story = gateway.history(id).await;
        let events: Vec<&str> =
            story["transitions"].as_array().unwrap().iter().filter_map(|line| line["event"].as_str()).collect();
        assert_eq!(events, ["submit", "dispatch", "start", "succeed"], "{story}");
    }
    assert_eq!(runs.all().len(), 1, "it ran once");
    assert_eq!(hand.settled().await.standing(), Standing::Ok, "who said both hears that its result stands");
    // A worker that has sent a result never releases: for its attempt nothing else was reported.
    let mut heard = 0;
    // The first report must come; whatever else was sent came soon after it.
    let patience = |heard| if heard == 0 { SOON } else { Duration::from_millis(500) };
    while let Ok(Some(received)) = tokio::time::timeout(patience(heard), said.next()).await {
        let Body::Result(group) = received.body else { continue };
        for item in group.items.into_iter().filter(|item| item.worker == "leaving") {
            assert!(matches!(item.kind, Some(Kind::Success(_))), "{item:?}");
            heard += 1;
        }
    }
    assert!(heard > 0, "its result was heard");
}
