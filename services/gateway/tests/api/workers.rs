//! Tests of HTTP workers, with a stand-in for the scheduler that answers as the real one does.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use muster_bus::{Bus, BusSettings, ConsumerSpec, subjects};
use muster_domain::{Event, JobId, StartId, WorkerId};
use muster_flow::{Flow, Offering, offer_of};
use muster_store::{Extension, Fields, RedisSettings, Step, Store};
use muster_testkit::{NatsServer, RedisServer, until};
use muster_wire::{
    Body, job_id, standing_of,
    v1::{self, start_answer::Verdict},
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::gate::Gate;

/// Answers starts, extensions and results, and dispatches jobs on request. It has servers of its own: on shared
/// servers, a stand-in whose test has ended might take the questions of another test.
struct StandIn {
    redis: RedisServer,
    nats: NatsServer,
    flow: Arc<Flow>,
    _tasks: JoinSet<()>,
}

impl StandIn {
    async fn start() -> StandIn {
        let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
        let store = Store::connect(RedisSettings::new(redis.url())).await.unwrap();
        let bus = Bus::connect(BusSettings::new(nats.url(), "stand-in")).await.unwrap();
        bus.ensure_streams().await.unwrap();
        let flow = Arc::new(Flow::new(store, bus));
        let mut tasks = JoinSet::new();
        tasks.spawn(starts(flow.clone()));
        tasks.spawn(extensions(flow.clone()));
        tasks.spawn(results(flow.clone()));
        StandIn { redis, nats, flow, _tasks: tasks }
    }

    /// A gateway on the same servers.
    async fn gate(&self) -> Gate {
        Gate::over(&self.redis.url(), &self.nats.url(), &[]).await
    }

    /// Dispatches pending jobs to their topic and offers them.
    async fn dispatch(&self, ids: &[JobId]) {
        for id in ids {
            let version = self.flow.store.read_one(*id, Fields::NONE).await.unwrap().unwrap().head.version;
            self.flow.store.apply_one(Step::new(*id, Event::Dispatch, version.into())).await.unwrap().head.unwrap();
        }
        self.offer(ids).await;
    }

    /// Offers these jobs together in their current state, which is `pending` on a busy topic.
    async fn offer(&self, ids: &[JobId]) {
        let mut offers = Vec::new();
        for id in ids {
            let record = self.flow.store.read_one(*id, Fields::PAYLOAD).await.unwrap().unwrap();
            offers.push(offer_of(&record, &record.head));
        }
        let sent = self.flow.offer(offers, Offering { most: 8, again: true }).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    }
}

async fn starts(flow: Arc<Flow>) {
    let mut asked = flow.bus.subscribe(&subjects::start(), Some("stand-in")).await.unwrap();
    while let Some(received) = asked.next().await {
        let Body::Start(request) = &received.body else { continue };
        let mut items = Vec::new();
        for ask in &request.items {
            let mut start_id = [0; 8];
            start_id.copy_from_slice(&ask.start_id);
            let step = Step {
                lease: granted(ask.lease_ms),
                start_id: StartId(start_id),
                worker: Some(WorkerId::trusted(request.worker.clone())),
                ..Step::new(job_id(&ask.job_id).unwrap(), Event::Start, ask.version.into())
            };
            let moved = flow.store.apply_one(step).await.unwrap();
            let mut answer = v1::StartAnswer { job_id: ask.job_id.clone(), ..Default::default() };
            match moved.done() {
                Some(head) => {
                    answer.verdict = Verdict::Go.into();
                    (answer.fence, answer.attempt) = (head.fence, head.attempt.into());
                    answer.max_attempts = head.max_attempts.into();
                    answer.lease_us = head.lease().unwrap().until.remaining(moved.now).as_micros() as u64;
                }
                None => answer.verdict = Verdict::Gone.into(),
            }
            items.push(answer);
        }
        received.respond(Body::Started(v1::StartReply { items })).await.unwrap();
    }
}

async fn extensions(flow: Arc<Flow>) {
    let mut asked = flow.bus.subscribe(&subjects::extend(), Some("stand-in")).await.unwrap();
    while let Some(received) = asked.next().await {
        let Body::Extend(request) = &received.body else { continue };
        let extension = |ask: &v1::ExtendAsk| Extension {
            job: job_id(&ask.job_id).unwrap(),
            fence: ask.fence,
            lease: granted(ask.lease_ms),
            progress: ask.progress.clone().map(Into::into),
        };
        let done = flow.store.extend(request.items.iter().map(extension).collect()).await;
        let items = request.items.iter().zip(done).map(|(ask, done)| {
            let done = done.unwrap();
            let standing = match &done.head {
                _ if done.held => v1::Standing::Ok,
                Some(head) => standing_of(head, ask.fence),
                None => v1::Standing::UnknownJob,
            };
            let lease_us = done.remaining.as_micros() as u64;
            v1::ExtendAnswer { job_id: ask.job_id.clone(), standing: standing.into(), lease_us }
        });
        received.respond(Body::Extended(v1::ExtendReply { items: items.collect() })).await.unwrap();
    }
}

/// The lease that a scheduler grants: the usual lease if the worker asks for none.
fn granted(lease_ms: u32) -> Duration {
    Duration::from_millis(if lease_ms == 0 { 30_000 } else { lease_ms.into() })
}

async fn results(flow: Arc<Flow>) {
    let consumer = flow.bus.consumer(ConsumerSpec::scheduler(subjects::result())).await.unwrap();
    loop {
        for delivery in consumer.fetch(64, Duration::from_secs(5)).await.unwrap_or_default() {
            let Body::Result(group) = &delivery.body else { continue };
            for item in &group.items {
                let id = job_id(&item.job_id).unwrap();
                let mut step = Step::new(id, Event::Succeed, item.fence);
                match item.kind.clone().unwrap() {
                    v1::result::Kind::Success(s) => {
                        step.result = Some(muster_store::StoredResult { json: s.result, ..Default::default() });
                    }
                    v1::result::Kind::Failed(f) => {
                        step = Step::new(id, Event::Fail, item.fence).with_error(f.failure.unwrap().into());
                    }
                    v1::result::Kind::Release(_) => step.event = Event::Release,
                }
                let moved = flow.store.apply_one(step).await.unwrap();
                let standing = match (&moved.head, moved.done()) {
                    (_, Some(_)) => v1::Standing::Ok,
                    (Some(head), None) => standing_of(head, item.fence),
                    (None, None) => v1::Standing::UnknownJob,
                };
                let settled = v1::Settled { job_id: item.job_id.clone(), fence: item.fence, standing: standing.into() };
                let notice = Body::Control(v1::Control { settled: vec![settled], ..Default::default() });
                let subject = subjects::worker_ctl(&WorkerId::trusted(item.worker.clone()));
                flow.bus.broadcast(&subject, notice).await.unwrap();
            }
            delivery.ack().await;
        }
    }
}

async fn submit(gate: &Gate, topic: &str, n: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for payload in 0..n {
        let made = gate.post("/api/v1/jobs", &json!({"topic": topic, "payload": payload})).await;
        ids.push(made.json["id"].as_str().unwrap().parse().unwrap());
    }
    ids
}

fn lease(request: &str, topic: &str, max: usize, wait_ms: u64) -> Value {
    json!({"request_id": request, "worker_id": "w1", "topics": [topic], "max": max, "wait_ms": wait_ms})
}

fn ids_of(items: &Value) -> BTreeSet<String> {
    items.as_array().unwrap().iter().map(|item| item["job_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_worker_leases_extends_and_completes_on_different_gateways() {
    let scheduler = StandIn::start().await;
    let (one, other) = (scheduler.gate().await, scheduler.gate().await);
    let other = other.for_tenant(one.tenant());
    let ids = submit(&one, "http.work", 3).await;
    scheduler.dispatch(&ids).await;

    let first = one.post("/api/v1/worker/lease", &lease("r1", "http.work", 2, 10_000)).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let items = first.json["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{}", first.text);
    assert_eq!((&items[0]["attempt"], &items[0]["max_attempts"]), (&json!(1), &json!(5)));
    assert!(items[0]["lease_ms"].as_u64().unwrap() > 25_000);
    let repeated = other.post("/api/v1/worker/lease", &lease("r1", "http.work", 2, 10_000)).await;
    assert_eq!(ids_of(&repeated.json["items"]), ids_of(&first.json["items"]), "the same request, the same jobs");
    let given = |items: &Value| -> BTreeSet<(String, String, String)> {
        let text = |item: &Value, name: &str| item[name].to_string();
        let fields = |item: &Value| (text(item, "job_id"), text(item, "payload"), text(item, "fence"));
        items.as_array().unwrap().iter().map(fields).collect()
    };
    assert_eq!(given(&repeated.json["items"]), given(&first.json["items"]), "with payload and fence");
    let second = other.post("/api/v1/worker/lease", &lease("r2", "http.work", 5, 10_000)).await;
    assert_eq!(second.json["items"].as_array().unwrap().len(), 1, "what the first did not take: {}", second.text);

    let held: Vec<Value> = items
        .iter()
        .map(|item| json!({"job_id": item["job_id"], "fence": item["fence"], "progress": {"percent": 50}}))
        .collect();
    let extended = other.post("/api/v1/worker/extend", &json!({"worker_id": "w1", "items": held})).await;
    assert!(extended.json["items"].as_array().unwrap().iter().all(|item| item["status"] == "ok"), "{}", extended.text);

    let done = json!({"job_id": items[0]["job_id"], "fence": items[0]["fence"], "result": {"n": 1}});
    let stale = json!({"job_id": items[1]["job_id"], "fence": 1, "result": 2});
    let answer = other.post("/api/v1/worker/complete", &json!({"items": [done, stale]})).await;
    assert_eq!(answer.json["items"][0]["status"], "ok", "{}", answer.text);
    assert_eq!(
        (&answer.json["items"][1]["status"], &answer.json["items"][1]["reason"]),
        (&json!("stale"), &json!("lost"))
    );
    let repeat = one.post("/api/v1/worker/complete", &json!({"worker_id": "w1", "items": [done]})).await;
    assert_eq!(repeat.json["items"][0]["status"], "ok", "a repeat is ok");
    let job = one.get(&format!("/api/v1/jobs/{}", items[0]["job_id"].as_str().unwrap())).await;
    assert_eq!(
        (&job.json["state"], &job.json["result"], &job.json["worker"]),
        (&json!("succeeded"), &json!({"n": 1}), &json!("w1"))
    );

    let failed =
        json!({"job_id": items[1]["job_id"], "fence": items[1]["fence"], "error": {"code": "boom", "message": "no"}});
    let answer = one.post("/api/v1/worker/fail", &json!({"items": [failed]})).await;
    assert_eq!(answer.json["items"][0]["status"], "ok", "{}", answer.text);
    let third = &second.json["items"][0];
    let released = json!({"items": [{"job_id": third["job_id"], "fence": third["fence"]}]});
    assert_eq!(one.post("/api/v1/worker/release", &released).await.json["items"][0]["status"], "ok");
    let job = one.get(&format!("/api/v1/jobs/{}", third["job_id"].as_str().unwrap())).await;
    assert_eq!((&job.json["state"], &job.json["attempt"]), (&json!("scheduled"), &json!(0)), "{}", job.text);
}

#[tokio::test]
async fn a_waiting_worker_is_given_work_as_soon_as_it_is_there() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    let ids = submit(&gate, "http.wait", 1).await;
    let began = tokio::time::Instant::now();
    let asked = lease("r1", "http.wait", 1, 20_000);
    let (leased, ()) = tokio::join!(gate.post("/api/v1/worker/lease", &asked), async {
        // Gives the call time to start waiting. If it is late, it still gets the job.
        tokio::time::sleep(Duration::from_millis(500)).await;
        scheduler.dispatch(&ids).await;
    });
    assert_eq!(ids_of(&leased.json["items"]), BTreeSet::from([ids[0].to_string()]));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let nothing = gate.post("/api/v1/worker/lease", &lease("r2", "http.wait", 1, 300)).await;
    assert_eq!(nothing.json, json!({"items": [], "drain": false}));
}

#[tokio::test]
async fn an_offer_whose_worker_has_gone_goes_to_the_next_at_once() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    let ids = submit(&gate, "http.gone", 1).await;
    let nothing = gate.post("/api/v1/worker/lease", &lease("r1", "http.gone", 1, 100)).await;
    assert_eq!(nothing.json["items"], json!([]), "its call is over, its pull may still stand");
    scheduler.dispatch(&ids).await;
    let began = tokio::time::Instant::now();
    let given = until(Duration::from_secs(20), "the job", async || {
        let request = format!("r-{}", fastrand::u64(..));
        let leased = gate.post("/api/v1/worker/lease", &lease(&request, "http.gone", 1, 2_000)).await;
        Some(leased).filter(|leased| !leased.json["items"].as_array().unwrap().is_empty())
    })
    .await;
    assert_eq!(ids_of(&given.json["items"]).len(), 1);
    assert!(began.elapsed() < Duration::from_secs(9), "not after the ack wait of ten seconds");
}

#[tokio::test]
async fn what_a_request_was_given_is_noted_for_as_long_as_the_topics_lease() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    let ids = submit(&gate, "http.long", 2).await;
    let left = async |request: &str| {
        let redis = &scheduler.redis;
        let keys = redis.cli(&["KEYS", &format!("muster:lease:{}:*:{request}", gate.tenant())]).await;
        redis.cli(&["PTTL", keys.trim()]).await.trim().parse::<u64>().expect("a note")
    };
    scheduler.dispatch(&ids[..1]).await;
    gate.post("/api/v1/worker/lease", &lease("usual", "http.long", 1, 10_000)).await;
    assert!((50_000..=60_000).contains(&left("usual").await), "a minute at least");

    let headers = [("content-type", "application/json")];
    let told = gate.send(Method::PUT, "/api/v1/topics/http.long", &headers, Some(br#"{"lease_ms":600000}"#.to_vec()));
    assert_eq!(told.await.status, 200);
    scheduler.dispatch(&ids[1..]).await;
    let asked = lease("long", "http.long", 1, 10_000);
    until(Duration::from_secs(10), "the job", async || {
        let leased = gate.post("/api/v1/worker/lease", &asked).await;
        (leased.json["items"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    assert!((500_000..=600_000).contains(&left("long").await), "as the topic was told");
}

#[tokio::test]
async fn a_cancel_ends_a_waiting_extension_early() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    let ids = submit(&gate, "http.cancel", 1).await;
    scheduler.dispatch(&ids).await;
    let leased = gate.post("/api/v1/worker/lease", &lease("r1", "http.cancel", 1, 10_000)).await;
    let item = &leased.json["items"][0];
    let hold =
        json!({"worker_id": "w1", "wait_ms": 20_000, "items": [{"job_id": item["job_id"], "fence": item["fence"]}]});
    let began = tokio::time::Instant::now();
    let (held, cancelled) = tokio::join!(gate.post("/api/v1/worker/extend", &hold), async {
        // Gives the call time to start waiting. If it is late, it still gets the cancel.
        tokio::time::sleep(Duration::from_millis(500)).await;
        gate.post(&format!("/api/v1/jobs/{}/cancel", ids[0]), &json!({"reason": "stop"})).await
    });
    assert_eq!(cancelled.json["state"], "cancelled");
    assert_eq!(
        (&held.json["items"][0]["status"], &held.json["items"][0]["reason"]),
        (&json!("stale"), &json!("cancelled"))
    );
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let late = json!({"items": [{"job_id": item["job_id"], "fence": item["fence"], "result": 1}]});
    let answer = gate.post("/api/v1/worker/complete", &late).await;
    assert_eq!(
        (&answer.json["items"][0]["status"], &answer.json["items"][0]["reason"]),
        (&json!("stale"), &json!("cancelled"))
    );
    assert_eq!(gate.get(&format!("/api/v1/jobs/{}", ids[0])).await.json["state"], "cancelled");
}

#[tokio::test]
async fn a_worker_that_takes_one_at_a_time_gets_every_job_of_a_shared_message() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    for topic in ["http.dispatched", "http.pending"] {
        let ids = submit(&gate, topic, 3).await;
        match topic {
            "http.dispatched" => scheduler.dispatch(&ids).await,
            _ => scheduler.offer(&ids).await,
        }
        let mut got = Vec::new();
        for n in 0..3 {
            let answer = gate.post("/api/v1/worker/lease", &lease(&format!("{topic}{n}"), topic, 1, 10_000)).await;
            got.extend(ids_of(&answer.json["items"]));
        }
        got.sort();
        let mut all: Vec<_> = ids.iter().map(ToString::to_string).collect();
        all.sort();
        assert_eq!(got, all, "{topic}: each call got another one");
    }
}

#[tokio::test]
async fn extensions_with_much_progress_are_cut_to_what_the_bus_carries() {
    let scheduler = StandIn::start().await;
    let gate = scheduler.gate().await;
    let ids = submit(&gate, "http.bulky", 24).await;
    scheduler.dispatch(&ids).await;
    let held = |item: &Value| json!({"job_id": item["job_id"], "fence": item["fence"], "progress": {"data": "x".repeat(60_000)}});
    // The offers come in several messages, and a call may be answered before the last of them arrives.
    let mut items: Vec<Value> = Vec::new();
    for n in 0..ids.len() {
        let asked = lease(&format!("bulky{n}"), "http.bulky", ids.len() - items.len(), 5_000);
        let leased = gate.post("/api/v1/worker/lease", &asked).await;
        items.extend(leased.json["items"].as_array().unwrap().iter().map(held));
        if items.len() == ids.len() {
            break;
        }
    }
    assert_eq!(items.len(), ids.len());
    let answer = gate.post("/api/v1/worker/extend", &json!({"worker_id": "w1", "items": items})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.json["items"].as_array().unwrap().iter().all(|i| i["status"] == "ok"));
}
