use std::{net::TcpListener, time::Instant};

use opentelemetry::trace::{Span as _, Tracer};

use super::*;

const ORIGIN: Origin<'static> = Origin { service: "muster-test", instance: "test-1", version: "1.2.3" };

/// A collector in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept(Arc<Mutex<(Vec<SpanData>, Option<Resource>)>>);

impl Kept {
    /// An export to this collector, and its tracer.
    pub(crate) fn export(&self) -> (Export, SdkTracer) {
        let export = Export::over(self.clone(), Arc::default(), ORIGIN);
        let tracer = export.tracer();
        (export, tracer)
    }

    /// All spans that arrived, after the export has ended.
    pub(crate) async fn after(&self, export: Export) -> Vec<SpanData> {
        export.stop(Duration::from_secs(10)).await;
        self.0.lock().unwrap().0.clone()
    }
}

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().0.extend(batch);
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.lock().unwrap().1 = Some(resource.clone());
    }
}

fn end_spans(tracer: &SdkTracer, n: usize) {
    (0..n).for_each(|_| tracer.start("work").end());
}

#[tokio::test]
async fn a_stop_delivers_what_waits_and_says_whose_it_is() {
    let kept = Kept::default();
    let (export, tracer) = kept.export();
    let state = Arc::clone(&export.state);
    end_spans(&tracer, 3);
    assert_eq!(state.waiting.load(Ordering::Relaxed), 3, "batches leave every few seconds");
    assert_eq!(kept.after(export).await.len(), 3);
    assert_eq!(state.waiting.load(Ordering::Relaxed), 0);
    let resource = kept.0.lock().unwrap().1.clone().unwrap();
    let said = |name: &'static str| resource.get(&name.into()).map(|value| value.to_string());
    let names = ["service.name", "service.instance.id", "service.version"].map(said);
    assert_eq!(names.each_ref().map(Option::as_deref), [Some("muster-test"), Some("test-1"), Some("1.2.3")]);
}

/// A server that takes connections and never answers.
fn silent() -> (TcpListener, String) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    (silent, url)
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_nobody_up() {
    let (_silent, url) = silent();
    let export = Export::to(&url, ORIGIN).unwrap();
    let (tracer, state) = (export.tracer(), Arc::clone(&export.state));
    let began = Instant::now();
    end_spans(&tracer, QUEUE + 1_000);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(state.waiting.load(Ordering::Relaxed), QUEUE, "the rest was dropped");
    let began = Instant::now();
    export.stop(Duration::from_millis(300)).await;
    let took = began.elapsed();
    assert!((Duration::from_millis(250)..Duration::from_secs(10)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn who_is_not_there_is_named_with_the_reason() {
    let (silent, url) = silent();
    drop(silent);
    let state = Arc::default();
    let client = OnRuntime::new(&state).unwrap();
    let request = Request::post(format!("{url}/v1/traces")).header("x-api-key", "hunter2").body(Bytes::new()).unwrap();
    client.send_bytes(request).await.unwrap_err();
    let fault = state.fault.lock().unwrap().clone().unwrap();
    assert!(fault.contains(&url) && fault.contains("refused") && !fault.contains("hunter2"), "{fault}");

    // The same through the whole export: spans are dropped well within the time of a stop.
    let export = Export::to(&url, ORIGIN).unwrap();
    let state = Arc::clone(&export.state);
    end_spans(&export.tracer(), 5);
    export.stop(Duration::from_secs(10)).await;
    assert_eq!(state.waiting.load(Ordering::Relaxed), 0, "given up, not left behind");
}

#[tokio::test]
async fn an_endpoint_is_an_http_address_without_a_login() {
    for bad in ["", "nonsense", "127.0.0.1:4318", "grpc://h:4317", "http://me:hunter2@h"] {
        let fault = Export::to(bad, ORIGIN).unwrap_err().to_string();
        assert!(fault.contains("http://") && !fault.contains("hunter2"), "{bad}: {fault}");
    }
    assert!(Export::to("https://otel.example/in/", ORIGIN).is_ok());
}
