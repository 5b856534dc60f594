//! The span under which a handler runs.
//!
//! The span is called `attempt` and carries the job's id, topic, attempt and trace as fields. With the feature
//! `opentelemetry`, and a layer of `tracing-opentelemetry` in the program, it is a span in the job's own trace: a child
//! of the span that the job was submitted under, or the beginning of a trace if the job has none. Spans that the
//! handler makes are its children. The span is an error if the handler failed, panicked or was aborted. Without the
//! layer, or without the feature, the trace is only a field.

use muster_domain::JobId;
use tracing::Span;

use super::{context::Context, handler::Outcome};

/// The span of an attempt that begins.
#[cfg(not(feature = "opentelemetry"))]
pub(super) fn of(job: JobId, context: &Context) -> Span {
    tracing::info_span!(
        "attempt",
        job_id = %job,
        topic = %context.topic(),
        attempt = context.attempt(),
        traceparent = context.traceparent().map(tracing::field::display),
    )
}

#[cfg(not(feature = "opentelemetry"))]
fn failed(_: &str) {}

#[cfg(feature = "opentelemetry")]
use joined::failed;
#[cfg(feature = "opentelemetry")]
pub(super) use joined::of;

#[cfg(feature = "opentelemetry")]
mod joined {
    use muster_domain::TraceParent;
    use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId};
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use super::{Context, JobId, Span};

    pub(in super::super) fn of(job: JobId, context: &Context) -> Span {
        let span = tracing::info_span!(
            "attempt",
            otel.kind = "consumer",
            job_id = %job,
            topic = %context.topic(),
            attempt = context.attempt(),
            traceparent = context.traceparent().map(tracing::field::display),
        );
        if let Some(TraceParent { trace_id, parent_id, flags }) = context.traceparent() {
            let (trace, parent) = (TraceId::from(trace_id), SpanId::from(parent_id));
            let remote = SpanContext::new(trace, parent, TraceFlags::new(flags), true, Default::default());
            // This fails if no layer listens: then the parent does not matter.
            let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote));
        }
        span
    }

    pub(super) fn failed(why: &str) {
        Span::current().set_status(Status::error(why.to_owned()));
    }
}

/// Accompanies a handler under its span. If it is dropped before the handler ended, the handler panicked or was
/// aborted.
#[derive(Debug, Default)]
pub(super) struct Watch {
    ended: bool,
}

impl Watch {
    /// The handler, which runs under its span, ended by itself.
    pub(super) fn ended(mut self, outcome: &Outcome) {
        self.ended = true;
        if let Err(error) = outcome {
            failed(&error.code);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.ended {
            failed(if std::thread::panicking() { "panicked" } else { "aborted" });
        }
    }
}

#[cfg(all(test, feature = "opentelemetry"))]
mod tests;
