//! Watching events: the same on every gateway, resumed at any of them, whatever happens to the previous one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_bus::{Bus, Items, subjects};
use muster_domain::{JobId, State};
use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack, Watch, by_hand::bus_of};
use muster_wire::{
    Body,
    v1::{EventGroup, JobEvent},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};

const SOON: Duration = Duration::from_secs(60);

/// What the stream itself holds from an event on: ids and jobs in its order.
async fn kept_from(bus: &Bus, id: &str) -> Vec<(String, String)> {
    let mut kept = Vec::new();
    let mut from = 1;
    loop {
        let (span, page) = bus.events_between(from, from + 63).await.expect("the stream can be read");
        for events in page {
            let id = |place: usize| format!("{:x}-{}-{place}", events.mark.epoch.0, events.mark.seq);
            let job = |raw: &[u8]| JobId::from_slice(raw).expect("an id").to_string();
            let Items::Jobs(items) = &events.items else { continue };
            kept.extend(items.iter().enumerate().map(|(place, event)| (id(place), job(&event.job_id))));
        }
        from += 64;
        if from > span.last {
            break;
        }
    }
    let first = kept.iter().position(|(kept, _)| kept == id).expect("it is kept");
    kept.split_off(first)
}

/// Collects events until `ends` jobs have ended, or the connection is closed.
async fn follow(watch: &mut Watch, told: &mut Vec<Value>, ends: usize) {
    // An end may be sent twice.
    let ended = |event: &Value| event["data"]["done"].as_bool()?.then(|| event["subject"].to_string());
    let mut over: BTreeSet<String> = told.iter().filter_map(ended).collect();
    while over.len() < ends {
        let Some(event) = watch.next(SOON).await else { return };
        assert_ne!(event["type"], "muster.gap", "nothing was lost");
        over.extend(ended(&event));
        told.push(event);
    }
}

/// The states of every job in the order of their events, each with its version.
fn stories(told: &[Value]) -> BTreeMap<String, Vec<(u64, String)>> {
    let mut stories: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for event in told {
        let (data, job) = (&event["data"], event["subject"].as_str().expect("a job"));
        let state = data["state"].as_str().expect("a state").to_owned();
        assert_eq!(event["type"], format!("muster.job.{state}"));
        stories.entry(job.to_owned()).or_default().push((data["version"].as_u64().expect("a version"), state));
    }
    stories
}

#[tokio::test]
async fn a_watcher_whose_gateway_is_killed_goes_on_at_the_other_and_misses_nothing() {
    let stack = Stack::with(Options::two()).await;
    let runs = Executions::default();
    let _worker =
        runs.worker(&stack, Setup { slots: 16, ..Setup::new("w1", "seen") }, |_, payload| async { Ok(payload) });
    let jobs = 600;
    // Subscribe before the first event.
    let mut first = stack.gateway(1).watch("topic=seen", None).await;
    let submitting = async {
        let mut ids = Vec::new();
        while ids.len() < jobs {
            ids.extend(stack.gateway(2).submit_many(5, &json!({"topic": "seen"})).await);
        }
        ids
    };
    let watching = async {
        let mut told = Vec::new();
        follow(&mut first, &mut told, 100).await;
        let died = stack.kill9("gateway-1");
        // Events that are already on their way still arrive.
        follow(&mut first, &mut told, usize::MAX).await;
        let mut watch = stack.gateway(2).watch("topic=seen", first.last_id.as_deref()).await;
        follow(&mut watch, &mut told, 300).await;
        stack.replaced("gateway-1", died).await;
        until(SOON, "it to be back", async || stack.ready("gateway-1").await.then_some(())).await;
        // The client itself disconnects, and connects to the gateway that knows nothing about it.
        let mut watch = stack.gateway(1).watch("topic=seen", watch.last_id.as_deref()).await;
        follow(&mut watch, &mut told, jobs).await;
        told
    };
    let (ids, told) = tokio::join!(submitting, watching);

    let heard: Vec<(String, String)> = told
        .iter()
        .map(|event| (event["id"].as_str().expect("an id").to_owned(), event["subject"].as_str().unwrap().to_owned()))
        .collect();
    let kept = kept_from(&bus_of(&stack, "reader").await, &heard[0].0).await;
    assert_eq!(heard, kept[..heard.len()], "all that the stream holds, in its order, each once");

    let mut stories = stories(&told);
    for id in &ids {
        let story = stories.get_mut(id).unwrap_or_else(|| panic!("{id} was never told of"));
        assert!(story.is_sorted(), "{id}: {story:?}");
        // A transition may be sent twice.
        story.dedup();
        let states: Vec<&str> = story.iter().map(|(_, state)| state.as_str()).collect();
        assert_eq!((states.first(), states.last()), (Some(&"pending"), Some(&"succeeded")), "{id}: {states:?}");
        let ended = states.iter().filter(|state| **state == "succeeded").count();
        let began = states.iter().filter(|state| **state == "running").count();
        assert_eq!((began, ended), (1, 1), "{id}: {states:?}");
    }
}

#[tokio::test]
async fn submit_on_one_gateway_read_wait_cancel_and_watch_on_the_other() {
    // A scheduler that offers a job pauses after it: by then the event is published.
    let slow = "dispatch.after_offer=delay:500;release.after_offer=delay:500";
    let stack = Stack::with(Options::two().env("MUSTER_FAILPOINTS", slow)).await;
    let (one, other) = (stack.gateway(1), stack.gateway(2));
    let mut watch = other.watch("topic=both", None).await;
    let stranger = other.for_tenant("stranger");
    let mut strange = stranger.watch("", None).await;
    let cancelled = one.submit(json!({"topic": "both"})).await;
    assert_eq!(other.job(&cancelled).await["id"], cancelled.as_str());
    other.reaches(&cancelled, "dispatched", SOON).await;
    let waits = async { other.get(&format!("/jobs/{cancelled}?wait_ms=20000")).await };
    let cancels = async { one.post(&format!("/jobs/{cancelled}/cancel"), &json!({"reason": "enough"})).await };
    let (waited, answer) = tokio::join!(waits, cancels);
    assert_eq!((answer.status.as_u16(), waited.body["state"].as_str()), (200, Some("cancelled")), "{}", answer.text);
    let mut told = Vec::new();
    follow(&mut watch, &mut told, 1).await;

    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "both"), |ctx, payload| async move {
        ctx.progress(50.0, "half", None);
        Ok(payload)
    });
    let done = one.submit(json!({"topic": "both"})).await;
    other.ended(&done, SOON).await;
    assert_eq!(one.post("/topics/both/pause", &json!({})).await.status, 200);
    // The schedulers learn about the pause a moment later: jobs submitted before that may still run.
    let mut ids = vec![cancelled, done.clone()];
    let held = loop {
        let id = one.submit(json!({"topic": "both"})).await;
        ids.push(id.clone());
        let job = until(SOON, "it to be held, or to end", async || {
            let job = other.job(&id).await;
            (job["state"] == "queued" || job["done"] == true).then_some(job)
        });
        if job.await["state"] == "queued" {
            break id;
        }
    };
    assert_eq!(one.post("/topics/both/resume", &json!({})).await.status, 200);
    other.ended(&held, SOON).await;
    // A job may end before its progress is sent.
    follow(&mut watch, &mut told, ids.len()).await;
    told.retain(|event| event["type"] != "muster.job.progress");
    let mut stories = stories(&told);
    assert!(stories[&done].is_sorted(), "each step before the next could be made: {:?}", stories[&done]);
    for id in &ids {
        // The event of a cancel may come before that of what another replica has just done, and a transition twice.
        let story = stories.get_mut(id).expect("it was told of");
        story.sort();
        story.dedup();
        let story: Vec<&str> = story.iter().map(|(_, state)| state.as_str()).collect();
        let history = other.history(id).await;
        let steps = history["transitions"].as_array().expect("its steps");
        let steps: Vec<&str> = steps.iter().filter_map(|step| step["state"].as_str()).collect();
        assert_eq!(story, steps, "{id}: every step was told");
    }
    assert!(stories[&held].iter().any(|(_, state)| state == "queued"), "{:?}", stories[&held]);

    // The client gets only the events of its own tenant.
    let own = stranger.submit(json!({"topic": "both"})).await;
    assert_eq!(strange.told(SOON).await["subject"], own.as_str(), "nothing of the others");
    assert!(stack.metric("gateway", "muster_event_streams").await >= 2.0);
}

#[tokio::test]
async fn a_stream_that_was_deleted_is_a_gap_and_what_comes_is_told() {
    let stack = Stack::with(Options::two()).await;
    let (one, other) = (stack.gateway(1), stack.gateway(2));
    let mut watch = one.watch("", None).await;
    let before = one.submit(json!({"topic": "t"})).await;
    assert_eq!(watch.told(SOON).await["subject"], before.as_str());
    let old = watch.last_id.clone();
    let client = async_nats::connect(stack.state().nats_url).await.expect("NATS answers");
    client.request("$JS.API.STREAM.DELETE.MUSTER_EVENTS", Default::default()).await.expect("it is deleted");
    let gapped = async |watch: &mut Watch| loop {
        if watch.told(SOON).await["type"] == "muster.gap" {
            break;
        }
    };
    gapped(&mut watch).await;
    let mut late = other.watch("", old.as_deref()).await;
    gapped(&mut late).await;
    let after = one.submit(json!({"topic": "t"})).await;
    for watch in [&mut watch, &mut late] {
        // Events of the first job may have been sent meanwhile.
        let mut subject = watch.told(SOON).await["subject"].clone();
        while subject == before.as_str() {
            subject = watch.told(SOON).await["subject"].clone();
        }
        assert_eq!(subject, after.as_str());
    }
}

#[tokio::test]
async fn a_reader_that_stalls_holds_up_nobody_and_gets_everything_in_the_end() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    // A client that sends a request and does not read, with as little buffer in between as possible.
    let address = stack.process("gateway-1").http.expect("an address");
    let address = address.strip_prefix("http://").expect("plain HTTP").parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut stalled = socket.connect(address).await.expect("a connection");
    let key = stack.state().api_key;
    let ask = format!("GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n");
    stalled.write_all(ask.as_bytes()).await.expect("it is asked");
    let mut some = [0; 1];
    stalled.read_exact(&mut some).await.expect("an answer begins");

    // Far more than fits into the buffers: 40,000 events in 2,000 messages.
    let mut watch = gateway.watch("", None).await;
    let bus = bus_of(&stack, "teller").await;
    let event = |version| JobEvent {
        job_id: JobId::mint(0).as_bytes().to_vec().into(),
        tenant: "default".into(),
        topic: "much".into(),
        state: State::Running.code().into(),
        version,
        ..Default::default()
    };
    let telling = async {
        for n in 0..2_000 {
            let items = (n * 20..n * 20 + 20).map(event).collect();
            bus.broadcast(&subjects::event(), Body::Event(EventGroup { items })).await.expect("NATS is there");
        }
    };
    let (mut ids, mut versions) = (Vec::new(), Vec::new());
    let reading = async {
        while versions.len() < 40_000 {
            let event = watch.told(SOON).await;
            ids.push(event["id"].as_str().expect("an id").to_owned());
            versions.push(event["data"]["version"].as_u64().expect("a version"));
        }
    };
    tokio::join!(telling, reading);
    assert!(versions.into_iter().eq(0..40_000), "all of them, in order");

    // Now the other client reads: HTTP chunks, which may cut an event.
    let (mut text, mut buffer) = (String::new(), vec![0; 64 * 1024]);
    let end = format!("id: {}\n", ids.last().expect("some"));
    let reading = async {
        loop {
            let read = stalled.read(&mut buffer).await.expect("it stands");
            assert!(read > 0, "it is not thrown out");
            let from = text.len().saturating_sub(end.len());
            text += std::str::from_utf8(&buffer[..read]).expect("ASCII");
            if text[from..].contains(&end) {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("it gets to the end");
    assert!(!text.contains("muster.gap"), "the stream holds all of it");
    let heard: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let of_events: Vec<&str> = heard.into_iter().filter(|id| id.matches('-').count() == 2).collect();
    assert_eq!(of_events, ids, "the same, once each");
}
