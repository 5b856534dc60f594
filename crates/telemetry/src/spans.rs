//! The spans that services make.
//!
//! This module knows the name, parent and attributes of each span. If nothing is exported, each call only reads a
//! static. A trace that its caller did not sample gets no span of a job. Attributes of jobs have the names of the API,
//! those of requests the names of OpenTelemetry. [`export`](crate::export) sends the spans out; the worker makes the
//! span of an attempt.

use std::time::{Duration, SystemTime};

use muster_domain::{Head, JobId, Tenant, Time, Topic, TraceParent};
use opentelemetry::{
    Context, KeyValue,
    trace::{Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, Tracer},
};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::export::tracer;

/// Whether spans are exported at all. Check this before reading or copying anything for a span.
pub fn exported() -> bool {
    tracer().is_some()
}

/// The context that a message carries, if spans are exported; otherwise the header is not even read.
pub fn carried(traceparent: &str) -> Option<TraceParent> {
    exported().then(|| TraceParent::parse(traceparent)).flatten()
}

/// The span of a request to the API, from its head to its answer. If the request is dropped unanswered, the span ends
/// there.
pub struct Request(Span);

impl Request {
    /// Begins the span, in the caller's trace or in a new one. `None` if nothing is exported.
    pub fn begin(method: &str, route: Option<&str>, path: &str, caller: Option<TraceParent>) -> Option<Request> {
        Request::of(tracer()?, method, route, path, caller)
    }

    fn of(
        tracer: &SdkTracer,
        method: &str,
        route: Option<&str>,
        path: &str,
        caller: Option<TraceParent>,
    ) -> Option<Request> {
        // Keeps the number of span names small, whatever methods clients invent.
        let method = KNOWN_METHODS.iter().copied().find(|known| *known == method);
        let verb = method.unwrap_or("HTTP");
        let name = route.map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.unwrap_or("_OTHER")),
            KeyValue::new("url.path", beginning(path).to_owned()),
        ];
        attributes.extend(route.map(|route| KeyValue::new("http.route", route.to_owned())));
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        let span = tracer.build_with_context(builder, &under(caller));
        // After the export has ended, a tracer makes spans without ids.
        span.span_context().is_valid().then_some(Request(span))
    }

    /// The context to pass on with the request.
    pub fn context(&self) -> TraceParent {
        let context = self.0.span_context();
        TraceParent {
            trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
            parent_id: u64::from_be_bytes(context.span_id().to_bytes()),
            flags: context.trace_flags().to_u8(),
        }
    }

    /// Ends the span. Only a 5xx is an error: a 4xx is the client's fault.
    pub fn answered(mut self, status: u16) {
        self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            self.0.set_status(Status::error(""));
        }
    }
}

/// How many bytes of a path a span keeps: a client may send a path of any length.
const PATH_BYTES: usize = 256;

/// The first [`PATH_BYTES`] of a path, cut on a character boundary.
fn beginning(path: &str) -> &str {
    let mut end = path.len().min(PATH_BYTES);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    &path[..end]
}

const KNOWN_METHODS: &[&str] = &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// The span of publishing a job's offer. Ends when it is dropped.
pub struct Dispatch(Span);

impl Dispatch {
    /// Begins the span, if its trace is exported. `version` is the record's version, under which the job may be
    /// started.
    pub fn begin(trace: TraceParent, id: JobId, topic: &str, version: u32) -> Option<Dispatch> {
        Dispatch::of(tracer()?, trace, id, topic, version)
    }

    fn of(tracer: &SdkTracer, trace: TraceParent, id: JobId, topic: &str, version: u32) -> Option<Dispatch> {
        let attributes = [
            KeyValue::new("job_id", id.to_string()),
            KeyValue::new("topic", topic.to_owned()),
            KeyValue::new("version", i64::from(version)),
        ];
        let builder = tracer.span_builder("dispatch").with_kind(SpanKind::Producer).with_attributes(attributes);
        trace.is_sampled().then(|| Dispatch(tracer.build_with_context(builder, &under(Some(trace)))))
    }

    /// The offer is not on the bus. A look will find the job.
    pub fn failed(&mut self, detail: &str) {
        self.0.set_status(Status::error(detail.to_owned()));
    }
}

/// Makes the span of a job from its acceptance to its end, both by the Redis clock, if its trace is exported.
pub fn job(trace: TraceParent, id: JobId, tenant: &Tenant, topic: &Topic, head: &Head, error_code: Option<&str>) {
    if let Some(tracer) = tracer().filter(|_| trace.is_sampled()) {
        ended(tracer, trace, id, tenant, topic, head, error_code);
    }
}

fn ended(
    tracer: &SdkTracer,
    trace: TraceParent,
    id: JobId,
    tenant: &Tenant,
    topic: &Topic,
    head: &Head,
    error_code: Option<&str>,
) {
    let mut attributes = vec![
        KeyValue::new("job_id", id.to_string()),
        KeyValue::new("tenant", tenant.to_string()),
        KeyValue::new("topic", topic.to_string()),
        KeyValue::new("state", head.state().as_str()),
        KeyValue::new("attempts", i64::from(head.attempt)),
    ];
    attributes.extend(error_code.map(|code| KeyValue::new("error_code", code.to_owned())));
    let builder = tracer.span_builder("job").with_start_time(moment(head.created_at)).with_attributes(attributes);
    let mut span = tracer.build_with_context(builder, &under(Some(trace)));
    if head.state().is_bad_end() {
        span.set_status(Status::error(error_code.unwrap_or_default().to_owned()));
    }
    span.end_with_timestamp(moment(head.since));
}

/// A context under this parent, or at the beginning of a trace.
fn under(parent: Option<TraceParent>) -> Context {
    let Some(TraceParent { trace_id, parent_id, flags }) = parent else { return Context::new() };
    let (trace, span) = (TraceId::from(trace_id), SpanId::from(parent_id));
    let remote = SpanContext::new(trace, span, TraceFlags::new(flags), true, Default::default());
    Context::new().with_remote_span_context(remote)
}

fn moment(time: Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
}

#[cfg(test)]
mod tests;
