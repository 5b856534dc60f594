//! Claim and fence: one offer has one winner, and a worker that lost its attempt changes nothing any more.

use std::{collections::HashSet, sync::Arc, time::Duration};

use muster_bus::{Bus, ConsumerSpec, Subject, subjects};
use muster_domain::{JobId, StartId, Tenant, Topic};
use muster_store::{Fields, NewJob, Record, Store};
use muster_testkit::{Proxy, until};
use muster_tests::{
    Executions, Options, Setup, Stack, WorkerProcess,
    by_hand::{Attempt, HandWorker, ask, bus_of, offer_again, offers_are_gone},
    pid_in, process_runs,
};
use muster_wire::{
    Body,
    v1::{
        Cancel, CancelGroup, Failed, Failure, Offer, Release, Standing, Submit, SubmitGroup, Success, result::Kind,
        start_answer::Verdict,
    },
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_secs(60);

/// Leases of dead workers end soon: the wait after an outage is one second only.
fn impatient() -> Options {
    Options::two().env("MUSTER_OUTAGE_WAIT", "1s")
}

async fn record(store: &Store, id: JobId) -> Record {
    store.read_one(id, Fields::ALL).await.unwrap().unwrap()
}

fn states(record: &Record) -> Vec<&'static str> {
    record.history.iter().map(|t| t.to.as_str()).collect()
}

/// The submit of a record, as the gateway publishes it.
fn submit_of(record: &Record) -> Submit {
    Submit {
        job_id: record.id.as_bytes().to_vec().into(),
        version: 1,
        spec: Some((&record.spec).into()),
        payload: record.payload.clone().unwrap_or_default(),
        pending_since: record.head.created_at.0,
        ..Default::default()
    }
}

async fn publish(bus: &Bus, subject: Subject, body: Body) {
    bus.publish(&subject, None, None, body).await.unwrap();
}

/// Waits until the schedulers have handled all messages on their subjects.
async fn handled(bus: &Bus) {
    for subject in [subjects::submit(), subjects::result(), subjects::cancel()] {
        let spec = ConsumerSpec::scheduler(subject);
        until(SOON, "every message to be handled", async || {
            let state = bus.consumer_state(&spec).await.ok()?;
            (state.pending == 0 && state.unacked == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn of_64_dispatches_and_64_starts_of_one_job_one_counts() {
    let stack = Stack::with(Options { replicas: 4, ..Options::default() }).await;
    let store = stack.store().await;
    let buses = [bus_of(&stack, "b1").await, bus_of(&stack, "b2").await];

    // The state after a gateway died before it published: a home, a record, and no message yet.
    let spec = muster_domain::JobSpec::new(Tenant::default(), Topic::parse("race").unwrap());
    let id = JobId::mint(7);
    store.set_homes(&[id], Duration::from_secs(30)).await.unwrap();
    store
        .submit(&[NewJob { id, spec, payload: "1".into(), body_hash: None, place: None, at: None }])
        .await
        .remove(0)
        .unwrap();
    let submit = submit_of(&record(&store, id).await);
    let dispatches = (0..64).map(|n| {
        let body = Body::Submit(SubmitGroup { items: vec![submit.clone()] });
        publish(&buses[n % 2], subjects::submit(), body)
    });
    futures_util::future::join_all(dispatches).await;
    handled(&buses[0]).await;
    let dispatched = record(&store, id).await;
    assert_eq!((dispatched.head.version, states(&dispatched)), (2, vec!["pending", "dispatched"]), "one dispatch");
    let subject = subjects::offer(&Tenant::default(), Topic::parse("race").unwrap());
    assert_eq!(buses[0].subject_count(&subject).await, Ok(1), "one offer");

    let worker = HandWorker::on(&stack, "looker", "race").await;
    let (offer, _delivery) = worker.offered().await;
    assert_eq!(offer.version, 2);
    let names: Vec<String> = (0..64).map(|n| format!("w{n}")).collect();
    let ids: Vec<StartId> = names.iter().map(|_| StartId::random()).collect();
    let asks = names.iter().zip(&ids).enumerate().map(|(n, (name, id))| ask(&buses[n % 2], name, &offer, *id, 30_000));
    let answers = futures_util::future::join_all(asks).await;
    let won: Vec<usize> = (0..64).filter(|n| answers[*n].verdict() == Verdict::Go).collect();
    assert_eq!(won.len(), 1, "one go");
    let winner = won[0];
    for (n, answer) in answers.iter().enumerate().filter(|(n, _)| *n != winner) {
        assert_eq!((answer.verdict(), answer.fence), (Verdict::Gone, 0), "{}", names[n]);
        assert_eq!(answer.reason, "running", "a reason");
    }
    let running = stack.gateway(1).job(&id.to_string()).await;
    assert_eq!((&running["state"], &running["attempt"]), (&json!("running"), &json!(1)));
    assert_eq!(running["worker"], names[winner], "the recorded owner is the winner");

    // After a lost reply, the same `start_id` gets the same answer again; all others get the same refusal.
    let again = ask(&buses[0], &names[winner], &offer, ids[winner], 30_000).await;
    assert_eq!((again.verdict(), again.fence, again.attempt), (Verdict::Go, answers[winner].fence, 1));
    let other = ask(&buses[1], &names[winner], &offer, StartId::random(), 30_000).await;
    assert_eq!(other.verdict(), Verdict::Gone, "another start_id of the same worker is another start");
    let after = record(&store, id).await;
    assert_eq!((after.head.attempt, after.head.version), (1, 3));
    assert_eq!(states(&after), ["pending", "dispatched", "running"]);
}

#[tokio::test]
async fn an_offer_that_comes_again_is_not_started_twice() {
    let stack = Stack::with(impatient()).await;
    let gateway = stack.gateway(1);
    let id = gateway.submit(json!({"topic": "twice"})).await;

    // An offer that is given back without a start is delivered again; a started one is not granted again.
    let hand = HandWorker::on(&stack, "hand", "twice").await;
    let (offer, delivery) = hand.offered().await;
    delivery.nak(Duration::ZERO).await;
    drop(hand);

    let runs = Executions::default();
    let gate = Arc::new(Semaphore::new(0));
    let mut setup = Setup::new("same", "twice");
    // Even a busy machine extends the lease within this time.
    setup.lease = Duration::from_secs(6);
    let handler = {
        let gate = gate.clone();
        move |_, _| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(json!("done"))
            }
        }
    };
    let first = runs.worker(&stack, setup.clone(), handler.clone());
    runs.reach(1, SOON).await;
    let bus = bus_of(&stack, "repeater").await;
    for _ in 0..5 {
        offer_again(&bus, &offer).await;
    }
    offers_are_gone(&bus, "twice", SOON).await;
    assert_eq!(runs.all().len(), 1, "not in another slot of the same worker");

    // The worker crashes and comes back under its name: the old offer starts nothing, only the offer after the lost
    // lease does.
    drop(first);
    let _second = runs.worker(&stack, setup, handler);
    for _ in 0..5 {
        offer_again(&bus, &offer).await;
    }
    runs.reach(2, SOON).await;
    for _ in 0..5 {
        offer_again(&bus, &offer).await;
    }
    offers_are_gone(&bus, "twice", SOON).await;
    gate.add_permits(10);
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)));
    offer_again(&bus, &offer).await;
    offers_are_gone(&bus, "twice", SOON).await;
    let all = runs.all();
    assert_eq!(all.iter().map(|r| r.attempt).collect::<Vec<_>>(), [1, 2], "each attempt ran once");
    assert!(all[0].fence < all[1].fence);
}

#[tokio::test]
async fn whoever_lost_its_attempt_is_refused_told_and_counted() {
    let stack = Stack::with(impatient()).await;
    let gateway = stack.gateway(1);
    let mut old = HandWorker::on(&stack, "old", "lost").await;
    old.lease_ms = 1_000;
    let id = gateway.submit(json!({"topic": "lost"})).await;
    let first = old.start_next().await;
    let mut new = HandWorker::on(&stack, "new", "lost").await;
    let second = new.start_next().await;
    assert_eq!((second.job.to_string(), second.number), (id.clone(), 2));
    assert!(second.fence > first.fence);
    let notice = old.told_to_stop().await;
    assert_eq!((notice.fence, notice.standing()), (first.fence, Standing::Lost), "told to stop");

    let store = stack.store().await;
    let before = (record(&store, second.job).await, stack.metric("scheduler", "muster_stale_writes_total").await);
    assert_eq!(old.extend(&first, 77.0).await.standing(), Standing::Lost);
    old.succeed(&first, "\"old\"").await;
    assert_eq!(old.settled().await.standing(), Standing::Lost);
    old.report(&first, Kind::Failed(failure(false))).await;
    assert_eq!(old.settled().await.standing(), Standing::Lost);
    old.release(&first).await;
    assert_eq!(old.settled().await.standing(), Standing::Lost);
    assert_eq!(record(&store, second.job).await, before.0, "nothing was changed, its progress neither");
    until(SOON, "each refusal to be counted once", async || {
        (stack.metric("scheduler", "muster_stale_writes_total").await - before.1 == 4.0).then_some(())
    })
    .await;

    assert_eq!(new.extend(&second, 50.0).await.standing(), Standing::Ok);
    new.succeed(&second, "\"new\"").await;
    assert_eq!(new.settled().await.standing(), Standing::Ok);
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((&job["state"], &job["result"], &job["worker"]), (&json!("succeeded"), &json!("new"), &json!("new")));

    // A late report changes nothing even now: the stored result stays.
    old.succeed(&first, "\"old\"").await;
    assert_eq!(old.settled().await.standing(), Standing::Lost);
    assert_eq!(gateway.job(&id).await["result"], "new");
}

#[tokio::test]
async fn the_late_result_of_a_worker_that_was_paused_changes_nothing() {
    let stack = Stack::with(impatient()).await;
    let gateway = stack.gateway(1);
    let nats = stack.state().nats_url;
    let nats = Proxy::start(nats.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()).await;
    let url = format!("nats://127.0.0.1:{}", nats.url_port());
    let folder = tempfile::tempdir().unwrap();
    let (file, over) = (folder.path().join("pid"), folder.path().join("over"));
    let waits = format!("until [ -e {} ]; do sleep 0.1; done", over.display());
    let command = format!("echo $$ > {}; {waits}; echo \"\\\"$MUSTER_FENCE\\\"\"", file.display());
    // Even a busy machine extends the lease within this time until the worker is stopped.
    let args = ["--nats-url", &url, "--topic", "pause", "--lease", "4s", "--id", "paused", "--exec", &command];
    let paused = WorkerProcess::start(&stack, &args);
    let id = gateway.submit(json!({"topic": "pause"})).await;
    let shell = pid_in(&file, SOON).await;
    paused.signal(Signal::SIGSTOP);
    // The notice that the worker has lost its job must not reach it. Then it reports its result, which is refused.
    nats.stall();

    let runs = Executions::default();
    let gate = Arc::new(Semaphore::new(0));
    let waits = gate.clone();
    let _healthy = runs.worker(&stack, Setup::new("healthy", "pause"), move |ctx, _| {
        let gate = waits.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(json!(ctx.fence().to_string()))
        }
    });
    runs.reach(1, SOON).await;
    // The command ends while its worker is stopped, so the worker finds its result when it wakes.
    std::fs::write(over, "").unwrap();
    until(SOON, "its command to end", async || (!process_runs(shell)).then_some(())).await;
    // What the proxy holds back is lost with the connection, and the notice is not sent again.
    nats.cut().await;
    nats.heal().await;
    let before = stack.metric("scheduler", "muster_stale_writes_total").await;
    paused.signal(Signal::SIGCONT);
    until(SOON, "the late worker to be refused", async || {
        (stack.metric("scheduler", "muster_stale_writes_total").await > before).then_some(())
    })
    .await;
    let job = gateway.job(&id).await;
    assert_eq!((&job["state"], &job["worker"], &job["attempt"]), (&json!("running"), &json!("healthy"), &json!(2)));
    gate.add_permits(1);
    let job = gateway.ended(&id, SOON).await;
    assert_eq!(job["state"], "succeeded");
    assert_eq!(job["result"], json!(runs.all()[0].fence.to_string()), "the new attempt's result is the stored one");
    assert_eq!(runs.all().len(), 1);
}

fn failure(retryable: bool) -> Failed {
    let failure = Failure { code: "late".into(), message: "late".into(), retryable, ..Default::default() };
    Failed { failure: Some(failure), retry_in_ms: None }
}

/// Publishes everything that was ever reported about a job, and contradicting reports, once more.
async fn say_everything_again(worker: &HandWorker, record: &Record) {
    let id: Vec<u8> = record.id.as_bytes().to_vec();
    let (tenant, topic) = (record.spec.tenant.to_string(), record.spec.topic.to_string());
    publish(&worker.bus, subjects::submit(), Body::Submit(SubmitGroup { items: vec![submit_of(record)] })).await;
    for version in 1..=record.head.version + 1 {
        let mut submit = submit_of(record);
        submit.version = version;
        publish(&worker.bus, subjects::submit(), Body::Submit(SubmitGroup { items: vec![submit] })).await;
        let offer = Offer {
            job_id: id.clone().into(),
            version,
            dispatched_at: record.head.created_at.0,
            tenant: tenant.clone(),
            topic: topic.clone(),
            payload: record.payload.clone().unwrap_or_default(),
            max_attempts: 5,
            ..Default::default()
        };
        offer_again(&worker.bus, &offer).await;
        for fence in [record.head.fence, record.head.fence.saturating_sub(1), record.head.fence + 1, 0] {
            let attempt = Attempt { job: record.id, fence, number: 1, offer: offer.clone() };
            let success = Success { result: "\"other\"".into(), ..Default::default() };
            worker.report(&attempt, Kind::Success(success)).await;
            worker.report(&attempt, Kind::Failed(failure(true))).await;
            worker.report(&attempt, Kind::Failed(failure(false))).await;
            worker.report(&attempt, Kind::Release(Release { delay_ms: 0 })).await;
        }
    }
    let cancel = Cancel { job_id: id.into(), tenant, reason: "once more".into(), ..Default::default() };
    publish(&worker.bus, subjects::cancel(), Body::Cancel(CancelGroup { items: vec![cancel] })).await;
}

#[tokio::test]
async fn messages_about_finished_jobs_change_nothing_when_they_come_again() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let (store, runs) = (stack.store().await, Executions::default());
    let _worker = runs.worker(&stack, Setup::new("w1", "over"), |ctx, payload: Value| async move {
        match payload["do"].as_str() {
            Some("fail") => Err(muster_sdk::HandlerError::permanent("no")),
            Some("wait") => {
                ctx.cancelled().await;
                Ok(json!("stopped"))
            }
            _ => Ok(json!("fine")),
        }
    });
    let fine = gateway.submit(json!({"topic": "over", "payload": {}})).await;
    let failed = gateway.submit(json!({"topic": "over", "payload": {"do": "fail"}})).await;
    let stopped = gateway.submit(json!({"topic": "over", "payload": {"do": "wait"}})).await;
    let unstarted = gateway.submit(json!({"topic": "over", "delay_ms": 600_000})).await;
    // A cancel may overtake the message that a job is started: then the job is never run.
    until(SOON, "its handler to begin", async || (!runs.of(&stopped).is_empty()).then_some(())).await;
    for id in [&stopped, &unstarted] {
        assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
    }
    let ids = [&fine, &failed, &stopped, &unstarted];
    let mut before = Vec::new();
    for (id, state) in ids.into_iter().zip(["succeeded", "failed", "cancelled", "cancelled"]) {
        assert_eq!(gateway.ended(id, SOON).await["state"], state);
        before.push(record(&store, id.parse().unwrap()).await);
    }
    let by_hand = HandWorker::on(&stack, "echo-of-the-past", "elsewhere").await;
    handled(&by_hand.bus).await;

    for record in &before {
        say_everything_again(&by_hand, record).await;
    }
    handled(&by_hand.bus).await;
    offers_are_gone(&by_hand.bus, "over", SOON).await;
    for (old, id) in before.iter().zip(ids) {
        assert_eq!(&record(&store, old.id).await, old, "{id} stands as it did");
    }
    assert_eq!(runs.all().len(), 3, "no handler ran again");
    until(SOON, "no home to be left", async || (store.count_homes().await == Ok(0)).then_some(())).await;
    let dead = gateway.get("/jobs?state=failed,quarantined,timed_out,expired").await;
    let listed: Vec<&str> = dead.body["items"].as_array().unwrap().iter().filter_map(|j| j["id"].as_str()).collect();
    assert_eq!(listed, [failed.as_str()], "one dead letter");
}

#[tokio::test]
async fn a_job_that_moved_on_meanwhile_is_not_started_by_its_old_offer() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let worker = HandWorker::on(&stack, "slow", "moved").await;

    let cancelled = gateway.submit(json!({"topic": "moved"})).await;
    let (offer, delivery) = worker.offered().await;
    assert_eq!(gateway.post(&format!("/jobs/{cancelled}/cancel"), &json!({})).await.status, 200);
    let answer = worker.ask(&offer, StartId::random()).await;
    assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::Gone, "cancelled"));
    delivery.ack().await;

    for limit in ["start_within_ms", "expire_in_ms"] {
        let expired = gateway.submit(json!({"topic": "moved", limit: 3000})).await;
        let (offer, delivery) = worker.offered().await;
        gateway.reaches(&expired, "expired", SOON).await;
        let answer = worker.ask(&offer, StartId::random()).await;
        assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::Gone, "expired"), "{limit}");
        assert_eq!(gateway.job(&expired).await["attempt"], 0);
        delivery.ack().await;
    }

    // The job is offered again: the older offer has no effect, before and after the newer one is started.
    let again = gateway.submit(json!({"topic": "moved", "retry": {"max_attempts": 2}})).await;
    let first = worker.start_next().await;
    worker.release(&first).await;
    let (newer, delivery) = worker.offered().await;
    assert!(newer.version > first.offer.version);
    assert_eq!(worker.ask(&first.offer, StartId::random()).await.verdict(), Verdict::Gone);
    assert_eq!(gateway.job(&again).await["state"], "dispatched");
    let go = worker.ask(&newer, StartId::random()).await;
    delivery.ack().await;
    assert_eq!((go.verdict(), go.attempt), (Verdict::Go, 1), "the attempt was given back");
    assert!(go.fence > first.fence);
    assert_eq!(worker.ask(&first.offer, StartId::random()).await.verdict(), Verdict::Gone);

    // The same through the SDK: old offers on the topic run nothing.
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "moved");
    for old in [&offer, &first.offer, &newer] {
        offer_again(&worker.bus, old).await;
    }
    offers_are_gone(&worker.bus, "moved", SOON).await;
    let fresh = gateway.submit(json!({"topic": "moved"})).await;
    gateway.ended(&fresh, SOON).await;
    let ran: HashSet<String> = runs.all().into_iter().map(|r| r.job).collect();
    assert_eq!(ran, HashSet::from([fresh]));
}
