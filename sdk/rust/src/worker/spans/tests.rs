use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use muster_wire::v1;
use opentelemetry::trace::{SpanId, SpanKind, Status, TracerProvider};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tokio::{sync::mpsc, time::Instant};
use tracing_subscriber::layer::SubscriberExt;

use super::{
    super::{
        Attempt,
        context::StopReason,
        handler::{Handler, HandlerError},
        running::Running,
        starts::Offered,
    },
    *,
};

/// A collector in memory.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// A handler that only does this work.
fn handler<F: Future<Output = Outcome> + Send + 'static>(work: impl Fn() -> F + Send + Sync + 'static) -> Handler {
    Arc::new(move |_, _| work().boxed())
}

/// Runs a handler to its end, whatever the end is.
async fn run(traceparent: &str, handler: &Handler) {
    let attempt = Attempt { job: JobId::mint(0), fence: 1 };
    let mut offer = v1::Offer {
        tenant: "default".to_owned(),
        topic: "t".to_owned(),
        traceparent: traceparent.to_owned(),
        ..v1::Offer::default()
    };
    let answer = v1::StartAnswer { attempt: 1, ..v1::StartAnswer::default() };
    let context = Context::new(attempt, &mut offer, &answer, mpsc::unbounded_channel().0).unwrap();
    let mut running = Running::new(Duration::ZERO);
    let offered = Offered { job: attempt.job, version: 1 };
    running.begin(attempt, offered, context, handler, Bytes::new(), Instant::now());
    // After this, the handler has run as far as it gets by itself.
    tokio::task::yield_now().await;
    if running.try_next().is_none() {
        assert!(running.stop(attempt, StopReason::Cancelled));
        running.tick(Instant::now());
        running.next().await.unwrap();
    }
}

#[tokio::test]
async fn an_attempt_is_an_error_unless_its_handler_succeeds() {
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _here = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    run(CALLER, &handler(async || Ok(Bytes::new().into()))).await;
    run(CALLER, &handler(async || Err(HandlerError::retryable("no").code("boom")))).await;
    run(CALLER, &handler(async || panic!("on purpose"))).await;
    run(CALLER, &handler(std::future::pending)).await;
    // A job without a trace, and one whose caller does not sample the trace.
    run("", &handler(async || Ok(Bytes::new().into()))).await;
    run(&CALLER.replace("-01", "-00"), &handler(async || Ok(Bytes::new().into()))).await;

    let spans = kept.0.lock().unwrap().clone();
    let ends: Vec<&Status> = spans.iter().map(|span| &span.status).collect();
    let failed = |why: &'static str| Status::error(why);
    assert_eq!(ends, [&Status::Unset, &failed("boom"), &failed("panicked"), &failed("aborted"), &Status::Unset]);
    assert!(spans.iter().all(|span| span.name == "attempt" && span.span_kind == SpanKind::Consumer), "{spans:?}");
    let parents: Vec<SpanId> = spans.iter().map(|span| span.parent_span_id).collect();
    let caller = SpanId::from(0x00f0_67aa_0ba9_02b7);
    assert_eq!(parents, [caller, caller, caller, caller, SpanId::INVALID], "one begins a trace");
}
