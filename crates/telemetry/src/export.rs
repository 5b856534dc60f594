//! Exports the spans of this process: by OTLP, in batches, from a thread of their own.
//!
//! This module knows the collector, the queue before it, and the process that the spans come from. Ending a span never
//! waits. A collector that is away, slow or faulty costs spans and nothing else; lost spans are counted and logged
//! ([`SpansLost`]). A stop flushes within the time that it is given and no longer. The sampler and the headers are the
//! standard ones (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`), read by the libraries themselves; headers are
//! never shown. [`spans`](crate::spans) defines the spans.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::{Context, KeyValue, trace::TracerProvider};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter,
        SpanProcessor,
    },
};
use tokio::runtime::Handle;

use crate::{Emit, events::SpansLost};

/// The most spans that wait for the collector; about a kilobyte each.
const QUEUE: usize = 8_192;
/// How many spans share one request.
const BATCH: usize = 512;
/// How long the collector may take to answer one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// The tracer, if spans are exported. Without a tracer, no work is done for a span at all.
pub(crate) fn tracer() -> Option<&'static SdkTracer> {
    TRACER.get()
}

/// The process that the spans come from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The name of the service, such as `muster-gateway`.
    pub service: &'a str,
    /// The name of the replica or worker.
    pub instance: &'a str,
    /// The version of the program.
    pub version: &'a str,
}

/// The exporter cannot be created from its settings.
#[derive(Debug)]
pub struct ExportFault(String);

impl fmt::Display for ExportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "traces cannot be exported: {}", self.0)
    }
}

impl std::error::Error for ExportFault {}

/// The export of this process, until it is stopped.
#[derive(Debug)]
pub struct Export {
    provider: SdkTracerProvider,
    state: Arc<State>,
}

impl Export {
    /// Starts exporting spans to `<endpoint>/v1/traces`. Requests run on the current tokio runtime.
    pub fn install(endpoint: &str, origin: Origin<'_>) -> Result<Export, ExportFault> {
        let export = Export::to(endpoint, origin)?;
        // If the tracer is already set, an earlier export of this process set it, and that export continues.
        let _ = TRACER.set(export.tracer());
        Ok(export)
    }

    fn to(endpoint: &str, origin: Origin<'_>) -> Result<Export, ExportFault> {
        check(endpoint)?;
        let state = Arc::<State>::default();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(OnRuntime::new(&state)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(ANSWER_WITHIN)
            // Retry once, in case the connection was just closed. A longer outage costs spans.
            .with_retry_policy(RetryPolicy::default().with_max_retries(1))
            .build()
            .map_err(|fault| ExportFault(fault.to_string()))?;
        Ok(Export::over(exporter, state, origin))
    }

    fn over(exporter: impl SpanExporter + 'static, state: Arc<State>, origin: Origin<'_>) -> Export {
        let Origin { service, instance, version } = origin;
        let resource = Resource::builder().with_service_name(service.to_owned()).with_attributes([
            KeyValue::new("service.instance.id", instance.to_owned()),
            KeyValue::new("service.version", version.to_owned()),
        ]);
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_max_export_batch_size(BATCH);
        let exporter = Delivered { exporter, state: Arc::clone(&state) };
        let batch = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
        let queue = Queue { batch, state: Arc::clone(&state) };
        let provider = SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(queue).build();
        Export { provider, state }
    }

    /// The tracer for spans that other code makes, such as a `tracing` layer.
    pub fn tracer(&self) -> SdkTracer {
        self.provider.tracer("muster")
    }

    /// Delivers the waiting spans, or drops them when the time is over.
    pub async fn stop(self, within: Duration) {
        let Export { provider, state } = self;
        // This call blocks its thread while the requests run on this runtime.
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within)).await;
        let left = state.waiting.load(Ordering::Relaxed);
        if left > 0 {
            SpansLost { n: left as u64, detail: "not delivered before the stop" }.emit();
        }
    }
}

/// The endpoint must not contain credentials, because it appears in the log when the collector is away.
fn check(endpoint: &str) -> Result<(), ExportFault> {
    let uri = endpoint.parse::<http::Uri>().unwrap_or_default();
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    match uri.scheme_str() {
        Some("http" | "https") if plain => Ok(()),
        _ => Err(ExportFault("the endpoint must be an http:// or https:// URL without a login".to_owned())),
    }
}

/// The state that the parts of an export share.
#[derive(Debug, Default)]
struct State {
    /// Spans that have ended and are not delivered yet.
    waiting: AtomicUsize,
    /// Why the last request failed; the exporter itself does not report it.
    fault: Mutex<Option<String>>,
}

/// The input side: takes spans while there is room.
#[derive(Debug)]
struct Queue {
    batch: BatchSpanProcessor,
    state: Arc<State>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.state.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE {
            return self.batch.on_end(span);
        }
        self.state.waiting.fetch_sub(1, Ordering::Relaxed);
        SpansLost { n: 1, detail: "the collector takes spans too slowly" }.emit();
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batch.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batch.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batch.set_resource(resource);
    }
}

/// The output side: reports spans that were not delivered.
#[derive(Debug)]
struct Delivered<E> {
    exporter: E,
    state: Arc<State>,
}

impl<E: SpanExporter> SpanExporter for Delivered<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let n = batch.len();
        let sent = self.exporter.export(batch).await;
        self.state.waiting.fetch_sub(n, Ordering::Relaxed);
        if let Err(fault) = &sent {
            let why = self.state.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
            SpansLost { n: n as u64, detail: &why.unwrap_or_else(|| fault.to_string()) }.emit();
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// An HTTP client on this process's own runtime: the thread that sends batches has no runtime.
#[derive(Debug)]
struct OnRuntime {
    client: reqwest::Client,
    runtime: Handle,
    state: Arc<State>,
}

impl OnRuntime {
    fn new(state: &Arc<State>) -> Result<OnRuntime, ExportFault> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // No redirects: headers may contain credentials, and must reach only the configured collector.
        let client = reqwest::Client::builder().timeout(ANSWER_WITHIN).redirect(reqwest::redirect::Policy::none());
        let client = client.build().map_err(|fault| ExportFault(fault.to_string()))?;
        Ok(OnRuntime { client, runtime: Handle::current(), state: Arc::clone(state) })
    }
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move { client.send_bytes(request).await }).await;
        let sent = sent.unwrap_or_else(|ended| Err(ended.into()));
        *self.state.fault.lock().unwrap_or_else(PoisonError::into_inner) =
            sent.as_ref().err().map(|f| said(f.as_ref()));
        sent
    }
}

/// An error with its innermost cause.
fn said(fault: &(dyn std::error::Error + 'static)) -> String {
    let inner = std::iter::successors(fault.source(), |inner| inner.source()).last();
    inner.map_or_else(|| fault.to_string(), |inner| format!("{fault}: {inner}"))
}

#[cfg(test)]
pub(crate) mod tests;
