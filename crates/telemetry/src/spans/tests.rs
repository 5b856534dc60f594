use muster_domain::{Ending, Phase};
use opentelemetry_sdk::trace::SpanData;

use super::*;
use crate::export::tests::Kept;

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn caller() -> TraceParent {
    TraceParent::parse(CALLER).unwrap()
}

fn unsampled() -> TraceParent {
    TraceParent { flags: 0, ..caller() }
}

/// The value of a span's attribute.
fn said(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == name).map(|kv| kv.value.to_string())
}

#[test]
fn where_nothing_is_exported_there_is_no_span() {
    assert!(!exported() && Request::begin("GET", None, "/", Some(caller())).is_none());
    assert!(carried(CALLER).is_none() && Dispatch::begin(caller(), JobId::mint(0), "t", 1).is_none());
}

#[tokio::test]
async fn a_request_is_a_child_of_its_caller_and_the_parent_of_what_follows() {
    let kept = Kept::default();
    let (export, tracer) = kept.export();
    let request = Request::of(&tracer, "POST", Some("/api/v1/jobs"), "/api/v1/jobs", Some(caller())).unwrap();
    let context = request.context();
    request.answered(202);
    let long = format!("/tea/{}", "ü".repeat(4000));
    let own = Request::of(&tracer, "BREW", None, &long, None).unwrap();
    let own_context = own.context();
    own.answered(503);
    assert!(context.trace_id == caller().trace_id && context.parent_id != caller().parent_id && context.is_sampled());
    assert!(own_context.is_sampled() && own_context.trace_id != caller().trace_id);

    let spans = kept.after(export).await;
    let [request, own] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*request.name, &request.span_kind), ("POST /api/v1/jobs", &SpanKind::Server));
    assert_eq!(request.parent_span_id, SpanId::from(caller().parent_id));
    assert_eq!(request.span_context.span_id(), SpanId::from(context.parent_id));
    assert_eq!(said(request, "http.response.status_code").as_deref(), Some("202"));
    assert_eq!(said(request, "url.path").as_deref(), Some("/api/v1/jobs"));
    assert_eq!(request.status, Status::Unset);
    assert_eq!((&*own.name, said(own, "http.request.method").as_deref()), ("HTTP", Some("_OTHER")));
    assert_eq!(said(own, "url.path").as_deref(), Some(&long[..255]), "cut before the character that has no room");
    assert!(own.parent_span_id == SpanId::INVALID && matches!(own.status, Status::Error { .. }));
}

#[tokio::test]
async fn what_its_caller_did_not_sample_stays_so() {
    let kept = Kept::default();
    let (export, tracer) = kept.export();
    let request = Request::of(&tracer, "GET", None, "/", Some(unsampled())).unwrap();
    let context = request.context();
    assert_eq!((context.trace_id, context.flags), (caller().trace_id, 0));
    request.answered(200);
    assert!(Dispatch::of(&tracer, unsampled(), JobId::mint(0), "t", 1).is_none());
    assert_eq!(kept.after(export).await, []);
}

#[tokio::test]
async fn a_tracer_that_has_ended_gives_requests_no_context() {
    let kept = Kept::default();
    let (export, tracer) = kept.export();
    kept.after(export).await;
    assert!(Request::of(&tracer, "GET", None, "/", Some(caller())).is_none());
}

#[tokio::test]
async fn a_job_lasts_from_its_acceptance_to_its_end() {
    let kept = Kept::default();
    let (export, tracer) = kept.export();
    let head = |end| Head {
        version: 4,
        attempt: 2,
        max_attempts: 5,
        lost: 0,
        released: 0,
        timeout: None,
        fence: 7,
        since: Time(5_000_000),
        deadline: None,
        start_by: None,
        started_at: Some(Time(3_000_000)),
        created_at: Time(2_000_000),
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase: Phase::Ended { end, lease_end: None },
    };
    let (tenant, topic, id) = (Tenant::parse("acme").unwrap(), Topic::parse("mail").unwrap(), JobId::mint(0));
    ended(&tracer, caller(), id, &tenant, &topic, &head(Ending::Succeeded), None);
    ended(&tracer, caller(), id, &tenant, &topic, &head(Ending::Failed), Some("handler_error"));
    Dispatch::of(&tracer, caller(), id, "mail", 4).unwrap().failed("nobody there");

    let spans = kept.after(export).await;
    let [good, bad, dispatch] = &spans[..] else { panic!("{spans:?}") };
    for span in &spans {
        assert_eq!(span.parent_span_id, SpanId::from(caller().parent_id));
        assert_eq!(span.span_context.trace_id(), TraceId::from(caller().trace_id));
        assert_eq!(said(span, "job_id"), Some(id.to_string()));
    }
    assert_eq!(good.start_time, SystemTime::UNIX_EPOCH + Duration::from_secs(2));
    assert_eq!(good.end_time, SystemTime::UNIX_EPOCH + Duration::from_secs(5));
    let words = ["tenant", "topic", "state", "attempts", "error_code"];
    assert_eq!(words.map(|word| said(good, word).unwrap_or_default()), ["acme", "mail", "succeeded", "2", ""]);
    assert_eq!(words.map(|word| said(bad, word).unwrap_or_default()), ["acme", "mail", "failed", "2", "handler_error"]);
    assert_eq!((&good.status, &bad.status), (&Status::Unset, &Status::error("handler_error")));
    assert_eq!((&*dispatch.name, &dispatch.span_kind), ("dispatch", &SpanKind::Producer));
    assert_eq!(dispatch.status, Status::error("nobody there"));
}
