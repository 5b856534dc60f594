//! Tests of watching events: which events a client sees, where it resumes, and what is refused. The tests publish the
//! events themselves, as schedulers do.

use std::time::Duration;

use muster_bus::{Bus, BusSettings, subjects};
use muster_domain::{JobId, RunId, State};
use muster_engine::run::{RunState, StepState};
use muster_sdk::sse::{Frame, Frames};
use muster_testkit::{NatsServer, redis, until};
use muster_wire::{
    Body,
    v1::{EventGroup, JobEvent, Progress, ProgressNotice, RunEvent, RunEventGroup},
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::gate::Gate;

const SOON: Duration = Duration::from_secs(30);

/// A connection to a gateway's events.
struct Watch {
    response: reqwest::Response,
    frames: Frames,
}

impl Watch {
    async fn open(gate: &Gate, query: &str, after: Option<&str>) -> Watch {
        let headers: Vec<_> = after.map(|id| ("last-event-id", id)).into_iter().collect();
        let response = gate.open(&format!("/api/v1/events{query}"), &headers).await;
        assert_eq!(response.status(), 200, "{query}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Watch { response, frames: Frames::default() }
    }

    /// The next frame; `None` at the end.
    async fn frame(&mut self, within: Duration) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.next() {
                return Some(frame);
            }
            match timeout(within, self.response.chunk()).await.expect("something in time") {
                Ok(Some(bytes)) => self.frames.feed(&bytes),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next event.
    async fn told(&mut self) -> Value {
        // Skip pings, which arrive at any time.
        let deadline = Instant::now() + SOON;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = self.frame(left).await.expect("the connection stands");
            if !frame.data.is_empty() {
                let event: Value = serde_json::from_str(&frame.data).expect("JSON");
                assert_eq!(event["id"].as_str(), frame.id.as_deref(), "both name the same place");
                return event;
            }
        }
    }

    /// The versions of the next events.
    async fn versions(&mut self, n: usize) -> Vec<u64> {
        let mut versions = Vec::new();
        while versions.len() < n {
            versions.push(self.told().await["data"]["version"].as_u64().expect("a version"));
        }
        versions
    }
}

async fn bus_of(nats: &NatsServer) -> Bus {
    let bus = Bus::connect(BusSettings::new(nats.url(), "test")).await.unwrap();
    bus.connected().await;
    bus.ensure_streams().await.unwrap();
    bus
}

fn event(tenant: &str, topic: &str, state: State, version: u32) -> JobEvent {
    JobEvent {
        job_id: JobId::mint(0).as_bytes().to_vec().into(),
        tenant: tenant.into(),
        topic: topic.into(),
        state: state.code().into(),
        version,
        attempt: 1,
        at: 1_700_000_000_000_000,
        ..Default::default()
    }
}

async fn tell(bus: &Bus, items: Vec<JobEvent>) {
    let body = Body::Event(EventGroup { items });
    until(SOON, "the bus", async || bus.broadcast(&subjects::event(), body.clone()).await.ok()).await;
}

/// Waits until NATS answers again, on a new connection.
async fn back(bus: &Bus) {
    until(SOON, "NATS to answer", async || bus.events_span().await.ok()).await;
}

/// Publishes one event with this version.
async fn say(bus: &Bus, gate: &Gate, version: u32) {
    tell(bus, vec![event(gate.tenant(), "t", State::Running, version)]).await;
}

#[tokio::test]
async fn everybody_sees_its_own_tenants_events_of_its_topics_and_what_it_asked_for() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let bus = bus_of(&nats).await;
    let (ours, theirs) = (gate.tenant().to_owned(), crate::gate::fresh_tenant());
    let key = gate.make_key(&["read"], &["mail.*"]).await;
    let chosen = event(&ours, "mail.send", State::Running, 7);
    let job = JobId::from_slice(&chosen.job_id).unwrap();
    let restricted = gate.with_key(Some(&key));
    let mut all = Watch::open(&gate, "", None).await;
    let mut other = Watch::open(&gate.for_tenant(&theirs), "", None).await;
    let mut of_key = Watch::open(&restricted, "", None).await;
    let mut of_topic = Watch::open(&gate, "?topic=sms", None).await;
    let mut of_job = Watch::open(&gate, &format!("?job_id={job}"), None).await;
    let mut of_types = Watch::open(&gate, "?type=muster.job.failed,muster.job.succeeded,muster.gap", None).await;

    let state_of_the_future = JobEvent { state: 250, ..event(&ours, "mail.send", State::Running, 2) };
    tell(
        &bus,
        vec![
            event(&theirs, "mail.send", State::Running, 1),
            state_of_the_future,
            event(&ours, "sms", State::Failed, 3),
            event(&ours, "mail.send", State::Succeeded, 4),
        ],
    )
    .await;
    tell(&bus, vec![event(&theirs, "mail.send", State::Succeeded, 5), event(&ours, "sms", State::Pending, 6), chosen])
        .await;
    tell(&bus, vec![event(&ours, "mail.x", State::Failed, 8)]).await;
    assert_eq!(all.versions(5).await, [3, 4, 6, 7, 8]);
    assert_eq!(other.versions(2).await, [1, 5]);
    assert_eq!(of_key.versions(3).await, [4, 7, 8]);
    assert_eq!(of_topic.versions(2).await, [3, 6]);
    assert_eq!(of_job.versions(1).await, [7]);
    assert_eq!(of_types.versions(3).await, [3, 4, 8]);

    // Progress is sent as well, and a client cannot resume from it.
    let data = "{\r\n  \"of\":\r  4\n}".to_owned();
    let progress = Some(Progress { percent: Some(50.0), message: "half".into(), data });
    let notice =
        ProgressNotice { job_id: job.as_bytes().to_vec().into(), tenant: ours, topic: "mail.send".into(), progress };
    bus.broadcast(&subjects::progress(), Body::Progress(notice)).await.unwrap();
    let shown = of_job.told().await;
    assert_eq!((&shown["type"], &shown["id"]), (&json!("muster.job.progress"), &Value::Null));
    let progress = json!({"percent": 50, "message": "half", "data": {"of": 4}});
    assert_eq!(shown["data"]["progress"], progress, "whatever its lines end with");
}

fn run_event(tenant: &str, run: RunId, state: RunState, version: u32) -> RunEvent {
    RunEvent {
        run_id: run.as_bytes().to_vec().into(),
        tenant: tenant.into(),
        workflow: "order".into(),
        version,
        state: state.code().into(),
        at: 1_700_000_000_000_000,
        ..Default::default()
    }
}

async fn tell_of_runs(bus: &Bus, items: Vec<RunEvent>) {
    let body = Body::RunEvent(RunEventGroup { items });
    until(SOON, "the bus", async || bus.broadcast(&subjects::workflow_event(), body.clone()).await.ok()).await;
}

#[tokio::test]
async fn events_of_runs_stand_between_those_of_their_jobs() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let bus = bus_of(&nats).await;
    let (ours, theirs) = (gate.tenant().to_owned(), crate::gate::fresh_tenant());
    let (run, other) = (RunId::mint(0), RunId::mint(1));
    let without_payloads = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    let of_some_topics = gate.with_key(Some(&gate.make_key(&["read"], &["mail.*"]).await));
    let mut all = Watch::open(&gate, "", None).await;
    let mut blind = Watch::open(&without_payloads, &format!("?run_id={run}"), None).await;
    let mut of_types = Watch::open(&gate, "?type=muster.run.failed,muster.step.failed,order.failed", None).await;
    let mut of_topic = Watch::open(&gate, "?topic=mail.send", None).await;
    let mut of_key = Watch::open(&of_some_topics, "", None).await;

    let job = |version| JobEvent { run_id: run.to_string(), ..event(&ours, "mail.send", State::Running, version) };
    let step = RunEvent {
        kind: "step".into(),
        step: "charge".into(),
        step_state: StepState::Failed.code().into(),
        error_code: "boom".into(),
        ..run_event(&ours, run, RunState::Running, 5)
    };
    let own = RunEvent {
        kind: "order.failed".into(),
        step: "alarm".into(),
        id: "e-1".into(),
        data: r#"{"order":7}"#.into(),
        ..run_event(&ours, run, RunState::Running, 6)
    };
    let of_the_future = RunEvent { state: 250, ..run_event(&ours, run, RunState::Running, 1) };
    tell_of_runs(
        &bus,
        vec![
            of_the_future,
            run_event(&theirs, run, RunState::Failed, 2),
            run_event(&ours, run, RunState::Running, 3),
            run_event(&ours, other, RunState::Running, 30),
        ],
    )
    .await;
    tell(&bus, vec![job(4)]).await;
    tell_of_runs(&bus, vec![step, own]).await;
    tell_of_runs(&bus, vec![run_event(&ours, run, RunState::Failed, 7)]).await;
    tell(&bus, vec![job(8)]).await;

    assert_eq!(all.versions(2).await, [3, 30]);
    let first = all.told().await;
    assert_eq!((&first["type"], &first["data"]["version"]), (&json!("muster.job.running"), &json!(4)));
    let mut rest = Vec::new();
    for _ in 0..4 {
        rest.push(all.told().await);
    }
    let types: Vec<&str> = rest.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(types, ["muster.step.failed", "order.failed", "muster.run.failed", "muster.job.running"]);
    assert!(rest[..3].iter().all(|event| event["subject"] == run.to_string()));
    assert_eq!((&rest[0]["data"]["step"], &rest[0]["data"]["error_code"]), (&json!("charge"), &json!("boom")));
    assert_eq!((&rest[1]["data"]["data"], &rest[1]["data"]["event_id"]), (&json!({"order": 7}), &json!("e-1")));
    assert_eq!((&rest[2]["data"]["done"], &rest[2]["data"]["workflow"]), (&json!(true), &json!("order")));

    assert_eq!(blind.versions(3).await, [3, 4, 5]);
    let own = blind.told().await;
    assert_eq!((&own["type"], own["data"].get("data")), (&json!("order.failed"), None), "it may not see payloads");
    assert_eq!(blind.versions(2).await, [7, 8]);
    assert_eq!(of_types.versions(3).await, [5, 6, 7]);
    for jobs_only in [&mut of_topic, &mut of_key] {
        assert_eq!(jobs_only.versions(2).await, [4, 8]);
    }

    // Any gateway goes on in the middle, whatever the events before and after are of.
    let second = Gate::over(&redis().await.url(), &nats.url(), &[]).await.for_tenant(&ours);
    let mut resumed = Watch::open(&second, "", rest[0]["id"].as_str()).await;
    assert_eq!(resumed.versions(3).await, [6, 7, 8]);
}

#[tokio::test]
async fn one_goes_on_in_the_middle_of_a_group_at_another_gateway() {
    let nats = NatsServer::start().await;
    let first = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let second = Gate::over(&redis().await.url(), &nats.url(), &[]).await.for_tenant(first.tenant());
    let bus = bus_of(&nats).await;
    let mut watch = Watch::open(&first, "", None).await;
    let greeting = watch.frame(SOON).await.unwrap();
    let from_the_start = greeting.id.expect("who has seen nothing yet has a place too");
    let group =
        |versions: std::ops::Range<u32>| versions.map(|v| event(first.tenant(), "t", State::Running, v)).collect();
    tell(&bus, group(0..5)).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(watch.told().await["id"].as_str().unwrap().to_owned());
    }
    drop(watch);
    // Far more than a watcher reads at a time.
    for n in 1..60 {
        tell(&bus, group(n * 5..n * 5 + 5)).await;
    }
    for gate in [&second, &first] {
        let mut watch = Watch::open(gate, "", Some(&ids[2])).await;
        assert_eq!(watch.versions(297).await, (3..300).collect::<Vec<_>>());
    }
    let mut by_query = Watch::open(&second, &format!("?last_event_id={}", ids[0]), None).await;
    assert_eq!(by_query.versions(299).await, (1..300).collect::<Vec<_>>());
    let mut again = Watch::open(&second, "", Some(&from_the_start)).await;
    assert_eq!(again.versions(300).await, (0..300).collect::<Vec<_>>());
    // From there on, both watchers get live events.
    say(&bus, &first, 300).await;
    for watch in [&mut by_query, &mut again] {
        assert_eq!(watch.versions(1).await, [300]);
    }
    let mut now = Watch::open(&second, "", None).await;
    let place = now.frame(SOON).await.unwrap().id.expect("a place");
    // Messages with more of the tenant's events than a watcher holds at a time, mixed with events of another tenant.
    let large = |from: u32| (from..from + 2_000).map(|v| event(whose(first.tenant(), v), "t", State::Running, v));
    let own = || (0..6_000).filter(|v| v % 3 > 0).collect::<Vec<_>>();
    for from in [0, 2_000, 4_000] {
        tell(&bus, large(from).collect()).await;
    }
    assert_eq!(now.versions(4_000).await, own());
    let mut late = Watch::open(&first, "", Some(&place)).await;
    assert_eq!(late.versions(4_000).await, own());
    say(&bus, &first, 301).await;
    assert_eq!((now.versions(1).await, late.versions(1).await), (vec![301], vec![301]));
}

/// Every third event belongs to another tenant.
fn whose(own: &str, version: u32) -> &str {
    if version.is_multiple_of(3) { "somebody-else" } else { own }
}

#[tokio::test]
async fn what_is_gone_is_told_as_one_gap_and_then_it_goes_on() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let bus = bus_of(&nats).await;
    let mut watch = Watch::open(&gate, "", None).await;
    say(&bus, &gate, 1).await;
    let old = watch.told().await["id"].as_str().unwrap().to_owned();
    let (epoch, _) = old.split_once('-').unwrap();

    // An id that no gateway issued, one from the future, and one of another stream.
    let future = format!("{epoch}-4000-0");
    for gone in ["nonsense", &future, "5f5e100-1-0"] {
        let mut watch = Watch::open(&gate, "", Some(gone)).await;
        assert_eq!(watch.told().await["type"], "muster.gap", "{gone}");
        say(&bus, &gate, 2).await;
        assert_eq!(watch.versions(1).await, [2], "{gone}");
    }
    assert_eq!(watch.versions(3).await, [2, 2, 2], "whoever missed nothing hears of no gap");

    // NATS comes back with its data: the watcher notices nothing.
    nats.restart().await;
    back(&bus).await;
    say(&bus, &gate, 3).await;
    assert_eq!(watch.versions(1).await, [3]);

    // NATS comes back empty.
    nats.restart_empty().await;
    assert_eq!(watch.told().await["type"], "muster.gap");
    say(&bus, &gate, 4).await;
    let last = watch.told().await;
    assert_eq!(last["data"]["version"], 4);
    assert_ne!(last["id"].as_str().unwrap().split_once('-').unwrap().0, epoch);
    let mut late = Watch::open(&gate, "", Some(&old)).await;
    assert_eq!(late.told().await["type"], "muster.gap");
    say(&bus, &gate, 5).await;
    for watch in [&mut watch, &mut late] {
        assert_eq!(watch.versions(1).await, [5]);
    }
}

#[tokio::test]
async fn an_older_stream_that_is_brought_back_is_a_gap_too() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let bus = bus_of(&nats).await;
    say(&bus, &gate, 1).await;
    nats.stop();
    let (store, aside) = (nats.store(), nats.store().with_extension("aside"));
    std::fs::rename(&store, &aside).expect("the store can be put aside");
    nats.restart().await;
    back(&bus).await;
    let mut watch = until(SOON, "to be let in", async || {
        let response = gate.open("/api/v1/events", &[]).await;
        (response.status() == 200).then(|| Watch { response, frames: Frames::default() })
    })
    .await;
    say(&bus, &gate, 2).await;
    assert_eq!(watch.versions(1).await, [2]);

    nats.stop();
    std::fs::remove_dir_all(&store).expect("the store can be wiped");
    std::fs::rename(&aside, &store).expect("the store can be put back");
    nats.restart().await;
    assert_eq!(watch.told().await["type"], "muster.gap");
    back(&bus).await;
    say(&bus, &gate, 3).await;
    assert_eq!(watch.versions(1).await, [3], "and then what comes, not what was told long ago");
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_by_name() {
    let gate = Gate::start(&[("MUSTER_EVENT_STREAMS", "8")]).await;
    for (query, code, pointer) in [
        ("topic=A", "invalid_request", "/query/topic"),
        ("job_id=7", "invalid_request", "/query/job_id"),
        ("type=muster.job.exploded", "invalid_request", "/query/type"),
        ("type=muster.run.started", "invalid_request", "/query/type"),
        ("type=muster.step.started", "invalid_request", "/query/type"),
        ("type=-failed", "invalid_request", "/query/type"),
        ("run_id=1", "invalid_request", "/query/run_id"),
        ("tenant=acme", "unknown_field", "/query/tenant"),
    ] {
        let refused = gate.get(&format!("/api/v1/events?{query}")).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code(), refused.pointers()),
            (422, code, vec![pointer]),
            "{query}"
        );
    }
    assert_eq!(gate.with_key(None).get("/api/v1/events").await.code(), "unauthorized");
    let submits = gate.make_key(&["submit"], &[]).await;
    assert_eq!(gate.with_key(Some(&submits)).get("/api/v1/events").await.code(), "missing_scope");
    let mails = gate.make_key(&["read"], &["mail.*"]).await;
    assert_eq!(gate.with_key(Some(&mails)).get("/api/v1/events?topic=sms").await.code(), "missing_scope");

    // Each tenant gets a quarter of the seats, until all are taken.
    let refused = async |gate: &Gate, why: &str| {
        let full = gate.get("/api/v1/events").await;
        assert_eq!((full.status.as_u16(), full.code()), (503, "overloaded"));
        assert!(full.text.contains(why), "{}", full.text);
        assert!(full.headers.contains_key("retry-after"));
    };
    let (_one, two) = (Watch::open(&gate, "", None).await, Watch::open(&gate, "", None).await);
    refused(&gate, "too many watch this tenant's events here").await;
    let mut others = Vec::new();
    for tenant in [(); 3].map(|()| crate::gate::fresh_tenant()) {
        let other = gate.for_tenant(&tenant);
        others.push((Watch::open(&other, "", None).await, Watch::open(&other, "", None).await));
    }
    refused(&gate.for_tenant(&crate::gate::fresh_tenant()), "too many watch events here").await;
    drop(two);
    until(SOON, "the seat to be free", async || (gate.open("/api/v1/events", &[]).await.status() == 200).then_some(()))
        .await;
}

#[tokio::test]
async fn while_the_bus_is_away_nobody_comes_in_and_nobody_is_thrown_out() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    nats.stop();
    let began = Instant::now();
    let refused = gate.get("/api/v1/events").await;
    assert_eq!((refused.status.as_u16(), refused.code()), (503, "store_unavailable"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    nats.restart().await;
    let mut watch = until(SOON, "to be let in", async || {
        let response = gate.open("/api/v1/events", &[]).await;
        (response.status() == 200).then(|| Watch { response, frames: Frames::default() })
    })
    .await;
    nats.stop();
    nats.restart().await;
    say(&bus_of(&nats).await, &gate, 1).await;
    assert_eq!(watch.versions(1).await, [1]);
}

#[tokio::test]
async fn a_stop_ends_every_connection_at_once() {
    let gate = Gate::start(&[]).await;
    let mut watch = Watch::open(&gate, "", None).await;
    assert!(watch.frame(SOON).await.is_some());
    gate.chassis.stop.request();
    let began = Instant::now();
    let (late, end) = tokio::join!(gate.chassis.run_until_stopped(), watch.frame(SOON));
    assert_eq!((late, end), (Vec::<&str>::new(), None));
    assert!(began.elapsed() < Duration::from_secs(12), "less than the limit of a stop: {:?}", began.elapsed());
}

/// Both cases wait for the first ping, so one test covers both.
#[tokio::test]
async fn a_quiet_connection_is_kept_alive_unless_its_key_is_gone() {
    let gate = Gate::start(&[]).await;
    let key = gate.make_key(&["read"], &[]).await;
    let id = key.split('_').nth(1).unwrap();
    let mut stays = Watch::open(&gate, "", None).await;
    let mut goes = Watch::open(&gate.with_key(Some(&key)), "", None).await;
    let (greeting, _) = (stays.frame(SOON).await.unwrap(), goes.frame(SOON).await.unwrap());
    assert_eq!(gate.delete(&format!("/api/v1/keys/{id}")).await.status, 204);
    let within = Duration::from_secs(40);
    let (ping, end) = tokio::join!(stays.frame(within), goes.frame(within));
    let ping = ping.expect("it stands");
    assert_eq!((ping.comments, ping.data.as_str()), (vec!["ping".to_owned()], ""));
    assert_eq!(end, None);
    let epoch = |id: &Option<String>| id.as_deref().unwrap().split('-').next().unwrap().to_owned();
    assert_eq!(epoch(&ping.id), epoch(&greeting.id), "a ping tells the place, too");
}
