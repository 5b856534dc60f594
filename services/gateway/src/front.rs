//! The front door: the steps that apply to every request, whatever its route.
//!
//! Promises: each request has an id, echoed or minted, and a trace. A request whose length two servers could read
//! differently is refused. Unless its route is open, a request has a known caller with the route's scope before any
//! of its body is read. Each refusal, unknown path and panic is answered with a problem document. Each answer is
//! measured under its route's pattern. Successful requests and client errors are logged at `debug` only: at tens of
//! thousands a second, one line each would be a load of its own. Each refusal that is the server's fault (5xx) is one
//! log line with the request's id. Refusals because of overload or an unreachable store come by the thousand; at most
//! a hundred of them are logged per second.

use std::{panic::AssertUnwindSafe, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Uri};
use muster_chassis::listen::Client;
use muster_domain::{ProblemCode, TraceParent};
use muster_telemetry::{
    Emit, Histogram,
    events::{Quiet, TaskPanicked},
    observe, spans, trace,
};
use tracing::Instrument;

use crate::{
    access::{Access, needed},
    endpoints,
    problem::{Carried, Problem, Within},
    state::Gateway,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The route name in metrics for an unknown path.
const NOWHERE: &str = "unmatched";

/// The trace that a request's jobs belong to: the caller's trace, or a new one that the gateway exports.
#[derive(Clone, Copy)]
pub(crate) struct Traced(pub(crate) TraceParent);

/// Handles every request, also those with an unknown path.
pub(crate) async fn door(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let pattern = route.as_ref().map(MatchedPath::as_str);
    let uri = request.uri().clone();
    let request_id = request_id(&request);
    let caller = caller_of(&request);
    let span = spans::Request::begin(request.method().as_str(), pattern, uri.path(), caller);
    let context = trace_of(&mut request, caller, span.as_ref());

    let access = needed(endpoints::operation(request.method(), pattern));
    let entered = enter(&gateway, &mut request, access).await;
    let outcome = match entered {
        Ok(()) => {
            let work = AssertUnwindSafe(next.run(request)).catch_unwind();
            // The span has level debug, so it costs nothing at the usual level.
            work.instrument(trace::span("http", &context)).await.unwrap_or_else(|panic| panicked(panic.as_ref()))
        }
        Err(problem) => problem.into_response(),
    };
    let mut response = complete(outcome, &uri, pattern.unwrap_or(NOWHERE), &request_id, &context);
    if let Ok(value) = HeaderValue::try_from(request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let took = began.elapsed();
    let status = response.status();
    observe(
        Histogram::HttpRequestDuration,
        &[("route", pattern.unwrap_or(NOWHERE)), ("status", status.as_str())],
        took.as_secs_f64(),
    );
    if let Some(span) = span {
        span.answered(status.as_u16());
    }
    let request_id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    tracing::debug!(path = uri.path(), status = status.as_u16(), request_id, took_us = took.as_micros(), "answered");
    response
}

/// Admits the request, or returns why it is refused.
async fn enter(gateway: &Gateway, request: &mut Request, access: Access) -> Result<(), Problem> {
    let client = request.extensions().get::<Client>();
    if client.is_some_and(Client::length_is_ambiguous) {
        let why = "`Content-Length` and `Transfer-Encoding` together, or one of them twice: give the body one length";
        return Err(Problem::new(ProblemCode::MalformedRequest, why));
    }
    if access == Access::Open {
        return Ok(());
    }
    let caller = gateway.keys.identify(request.headers()).await?;
    if let Some(client) = client {
        client.is_known();
    }
    caller.may(access)?;
    request.extensions_mut().insert(caller);
    Ok(())
}

/// The client's id for this request if it can be echoed, otherwise a minted id.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match given.filter(|id| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic())) {
        Some(id) => id.to_owned(),
        None => hex::encode(fastrand::u64(..).to_be_bytes()),
    }
}

/// The trace context that the caller sent, if it can be parsed.
fn caller_of(request: &Request) -> Option<TraceParent> {
    request.headers().get(trace::HEADER).and_then(|value| value.to_str().ok()).and_then(TraceParent::parse)
}

/// The trace context of a request: that of its span, or, if spans are not exported, a similar context.
fn trace_of(request: &mut Request, caller: Option<TraceParent>, span: Option<&spans::Request>) -> TraceParent {
    let context = match (span, caller) {
        (Some(span), _) => span.context(),
        (None, Some(caller)) => caller.child(),
        (None, None) => TraceParent::fresh(),
    };
    // Jobs carry on a trace of the gateway only if the trace is recorded.
    if caller.is_some() || (span.is_some() && context.is_sampled()) {
        request.extensions_mut().insert(Traced(context));
    }
    context
}

/// Writes the problem that a handler returned, and adds what only the front door knows.
fn complete(mut response: Response, uri: &Uri, route: &str, request_id: &str, context: &TraceParent) -> Response {
    let trace_id = || context.trace_hex();
    if let Some(Within(problem)) = response.extensions_mut().remove::<Within>() {
        note_fault(&problem, route, request_id, &trace_id());
    }
    let Some(Carried(problem)) = response.extensions_mut().remove::<Carried>() else { return response };
    let trace_id = trace_id();
    note_fault(&problem, route, request_id, &trace_id);
    problem.render(uri.path(), request_id, &trace_id)
}

/// Logs a fault with the request id, so that an operator can find the request that a client reports.
fn note_fault(problem: &Problem, route: &str, request_id: &str, trace_id: &str) {
    static REFUSALS: Quiet = Quiet::lines(100);
    let (code, detail) = (problem.code.as_str(), &*problem.detail);
    match problem.status().as_u16() {
        500 => tracing::error!(event = "request_failed", request_id, route, code, trace_id, detail, "a request failed"),
        501.. => {
            if let Some(left_out) = REFUSALS.speak() {
                let event = "request_failed";
                tracing::warn!(event, request_id, route, code, trace_id, detail, left_out, "a request failed");
            }
        }
        _ => {}
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let detail = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    TaskPanicked { task: "http request", detail }.emit();
    Problem::new(ProblemCode::Internal, "the request hit a fault of ours; the log has the reason").into_response()
}

/// Answers an unknown path.
pub(crate) async fn nowhere(uri: Uri) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is nothing at {}", uri.path()))
}

/// Answers an unsupported method on a known path.
pub(crate) async fn wrong_method(method: http::Method, uri: Uri) -> Problem {
    Problem::new(ProblemCode::MethodNotAllowed, format!("{} does not know {method}", uri.path()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn with_id(id: &str) -> Request {
        Request::builder().header(REQUEST_ID, id).body(Body::empty()).unwrap()
    }

    #[test]
    fn request_ids_are_echoed_or_minted() {
        assert_eq!(request_id(&with_id("abc-1")), "abc-1");
        for odd in ["", "a b", &"x".repeat(129)] {
            assert_eq!(request_id(&with_id(odd)).len(), 16, "{odd:?}");
        }
        assert_ne!(request_id(&with_id("")), request_id(&with_id("")));
    }

    #[test]
    fn a_given_trace_goes_on() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut request = Request::builder().header("traceparent", text).body(Body::empty()).unwrap();
        let caller = caller_of(&request);
        assert_eq!(trace_of(&mut request, caller, None).trace_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(request.extensions().get::<Traced>().is_some());
        let mut plain = Request::new(Body::empty());
        assert_eq!(caller_of(&plain), None);
        trace_of(&mut plain, None, None);
        assert!(plain.extensions().get::<Traced>().is_none(), "a trace of our own is not put on jobs");
    }
}
