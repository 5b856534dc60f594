//! Traces as an operator's collector gets them: a job is one trace from its caller to its worker, and a collector
//! that is away costs only spans.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use muster_testkit::{free_port, until};
use muster_tests::{Options, Probe, Stack, WorkerProcess};
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value as Held},
    trace::v1::span::SpanKind,
};
use prost::Message;
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const KEY: &str = "hunter2";

/// A span, and the process that made it.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    instance: String,
    name: String,
    kind: SpanKind,
    trace: String,
    id: String,
    parent: String,
    said: BTreeMap<String, String>,
    took: Duration,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn words(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let word = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Held::StringValue(text)) => text.clone(),
        Some(Held::IntValue(n)) => n.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|kv| (kv.key.clone(), word(&kv.value))).collect()
}

/// A collector that runs in the test.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    /// Starts the collector; also returns its address.
    #[expect(clippy::disallowed_methods, reason = "a test's own server")]
    async fn start() -> (Collector, String) {
        let collector = Collector::default();
        let kept = collector.clone();
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers.get("content-type").map(|v| v.as_bytes()), Some(&b"application/x-protobuf"[..]));
            kept.take(headers.get("x-api-key").is_some_and(|key| key == KEY), &body);
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("a port"));
        let routes = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, url)
    }

    fn take(&self, keyed: bool, body: &[u8]) {
        let request = ExportTraceServiceRequest::decode(body).expect("spans");
        for group in request.resource_spans {
            let who = words(&group.resource.expect("a resource").attributes);
            assert_eq!(who["service.version"], env!("CARGO_PKG_VERSION"));
            for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                // The worker is started without these headers.
                assert_eq!(keyed, who["service.name"] != "muster-worker", "{span:?}");
                self.0.lock().expect("no panic").push(Span {
                    service: who["service.name"].clone(),
                    instance: who["service.instance.id"].clone(),
                    kind: span.kind(),
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    said: words(&span.attributes),
                    took: Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano),
                    name: span.name,
                });
            }
        }
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("no panic").clone()
    }

    /// Waits for the one span with this name about this job.
    async fn about(&self, job: &str, name: &str) -> Span {
        let wanted = |span: &Span| span.name == name && span.said.get("job_id").is_some_and(|id| id == job);
        let found = until(SOON, &format!("the span {name} of {job}"), async || {
            let found: Vec<_> = self.spans().into_iter().filter(wanted).collect();
            (!found.is_empty()).then_some(found)
        })
        .await;
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().expect("one")
    }
}

async fn submit(gateway: &Probe, topic: &str, caller: Option<&str>) -> String {
    let body = Some(json!({"topic": topic, "payload": 1}).to_string().into_bytes());
    let headers: Vec<_> = caller.map(|caller| ("traceparent", caller)).into_iter().collect();
    let id = gateway.send(reqwest::Method::POST, "/api/v1/jobs", &headers, body).await.expect("an answer").id();
    assert_eq!(gateway.ended(&id, SOON).await["state"], "succeeded");
    id
}

#[tokio::test]
async fn a_job_is_one_trace_from_its_caller_to_its_worker() {
    let (collector, url) = Collector::start().await;
    // No span is exported by schedule: those that arrive were flushed at the end of their process.
    let options = Options::default()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        .env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-api-key={KEY}"))
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        // Settings for other programs in the same environment change nothing here.
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let echo = ["--builtin", "echo", "--otel-exporter-otlp-endpoint", &url, "--log", "error"];
    let mut over_nats = WorkerProcess::start(&stack, &[&["--topic", "traced", "--id", "w1"], &echo[..]].concat());
    let _over_http = WorkerProcess::start(&stack, &[&["--topic", "plain", "--id", "w2", "--http"], &echo[..]].concat());
    let called = submit(&gateway, "traced", Some(CALLER)).await;
    let alone = submit(&gateway, "traced", None).await;
    let plain = submit(&gateway, "plain", None).await;
    let quiet = submit(&gateway, "traced", Some(&CALLER.replace("4bf9", "5bf9").replace("-01", "-00"))).await;

    assert_eq!(collector.spans().iter().filter(|s| s.service != "muster-worker").count(), 0, "no batch is full yet");
    over_nats.signal(Signal::SIGTERM);
    assert!(over_nats.exited(SOON).await.success());
    stack.signal("scheduler-1", Signal::SIGTERM);
    stack.signal("gateway-1", Signal::SIGTERM);

    // Below the caller is the request, and below that everything about the job.
    let job = collector.about(&called, "job").await;
    let (dispatch, attempt) = (collector.about(&called, "dispatch").await, collector.about(&called, "attempt").await);
    let request = until(SOON, "the request's span", async || {
        collector.spans().into_iter().find(|s| s.kind == SpanKind::Server && s.parent == "00f067aa0ba902b7")
    });
    let request = request.await;
    assert_eq!((&*request.name, &*request.said["http.response.status_code"]), ("POST /api/v1/jobs", "202"));
    assert_eq!((&*request.service, &*request.instance), ("muster-gateway", "gateway-1"));
    for span in [&request, &job, &dispatch, &attempt] {
        assert_eq!(span.trace, "4bf92f3577b34da6a3ce929d0e0e4736", "{span:?}");
    }
    for span in [&job, &dispatch, &attempt] {
        assert_eq!(span.parent, request.id, "{span:?}");
        assert_eq!(span.said["topic"], "traced");
    }
    assert_eq!((&*dispatch.service, dispatch.kind), ("muster-scheduler", SpanKind::Producer));
    assert_eq!((&*attempt.service, &*attempt.instance, attempt.kind), ("muster-worker", "w1", SpanKind::Consumer));
    assert_eq!((&*attempt.said["attempt"], &*job.said["attempts"]), ("1", "1"));
    assert_eq!(
        (&*job.service, &*job.said["state"], &*job.said["tenant"]),
        ("muster-scheduler", "succeeded", "default")
    );
    assert!(job.took > Duration::ZERO && job.took < SOON, "{job:?}");

    // Without a caller the request begins a trace, which the job continues; over HTTP too.
    for (id, names) in [(&alone, &["dispatch", "attempt", "job"][..]), (&plain, &["dispatch", "job"])] {
        for name in names {
            let span = collector.about(id, name).await;
            let above: Vec<_> = collector.spans().into_iter().filter(|s| s.id == span.parent).collect();
            assert_eq!(above.len(), 1, "{name}: {above:?}");
            assert_eq!((&*above[0].name, &*above[0].parent, &above[0].trace), ("POST /api/v1/jobs", "", &span.trace));
        }
    }

    // A trace that its caller does not record is not recorded here either.
    let all = collector.spans();
    assert!(all.iter().all(|s| !s.trace.starts_with("5bf9") && s.said.get("job_id") != Some(&quiet)), "{all:?}");
    for name in ["gateway-1", "scheduler-1"] {
        assert!(!stack.log(name).contains(KEY), "{name} shows a header");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let options = Options::default().env("OTEL_EXPORTER_OTLP_ENDPOINT", &nobody).env("OTEL_BSP_SCHEDULE_DELAY", "100");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let _worker = WorkerProcess::start(&stack, &["--topic", "t", "--builtin", "echo"]);
    for id in gateway.submit_many(200, &json!({"topic": "t"})).await {
        assert_eq!(gateway.ended(&id, SOON).await["state"], "succeeded");
    }
    for (service, name) in [("gateway", "gateway-1"), ("scheduler", "scheduler-1")] {
        until(SOON, "spans to be given up", async || {
            (stack.metric(service, "muster_spans_lost_total").await >= 200.0).then_some(())
        })
        .await;
        let log = stack.log(name);
        let lines: Vec<_> = log.lines().filter(|line| line.contains("spans_lost")).collect();
        // Logged once a minute: never in a row, and twice only on a machine that took that long.
        assert!((1..=2).contains(&lines.len()), "{name}: {lines:?}");
        assert!(lines.iter().all(|line| line.contains(&nobody) && line.contains("refused")), "{name}: {lines:?}");
    }
    let began = Instant::now();
    let died = stack.signal("gateway-1", Signal::SIGTERM);
    stack.replaced("gateway-1", died).await;
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert!(stack.log("gateway-1").contains("\"event\":\"stopped\""));
}
