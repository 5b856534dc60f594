//! Logs, trace context, and text that must not be logged.
//!
//! This module knows how a `traceparent` becomes a span and a header again, where logs go and in
//! which format. A [`Secret`] never shows its content by accident. `wire` carries the context in
//! envelopes; `spans` and `export` make and export spans.

use std::{fmt, io::IsTerminal};

use muster_domain::TraceParent;
use tracing::Span;
use tracing_subscriber::{EnvFilter, util::SubscriberInitExt};

/// The HTTP header that carries the context.
pub const HEADER: &str = "traceparent";

/// The context of a request: a child span in the caller's trace, or a new trace if the caller sent
/// no header or an invalid one.
pub fn accept(header: Option<&str>) -> TraceParent {
    header.and_then(TraceParent::parse).map_or_else(TraceParent::fresh, TraceParent::child)
}

/// A span under which log lines carry the trace. Its level is `debug`: at the default level it
/// costs nothing, which matters at tens of thousands of jobs a second.
pub fn span(work: &'static str, context: &TraceParent) -> Span {
    tracing::debug_span!("traced", work, trace_id = %TraceHex(context.trace_id), parent_id = %SpanHex(context.parent_id))
}

struct TraceHex(u128);

impl fmt::Display for TraceHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

struct SpanHex(u64);

impl fmt::Display for SpanHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How a process logs.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Levels by target: `info`, or `info,muster_store=debug`.
    pub level_filter: String,
    /// Log one JSON object per line instead of text for people.
    pub json: bool,
}

impl LogSettings {
    /// JSON unless stderr is a terminal.
    pub fn for_this_process(level_filter: &str) -> LogSettings {
        LogSettings { level_filter: level_filter.to_owned(), json: !std::io::stderr().is_terminal() }
    }
}

/// The level filter cannot be read.
#[derive(Debug)]
pub struct LogFault(String);

impl fmt::Display for LogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LogFault {}

/// Checks whether a level filter can be read, without using it.
pub fn check_filter(filter: &str) -> Result<(), LogFault> {
    EnvFilter::try_new(filter).map(drop).map_err(|fault| LogFault(fault.to_string()))
}

/// Sends logs to stderr from now on. A second call in the same process changes nothing.
pub fn init_logs(settings: &LogSettings) -> Result<(), LogFault> {
    let filter = EnvFilter::try_new(&settings.level_filter).map_err(|fault| LogFault(fault.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // If logging is already set up, an earlier call did it, or a test that captures its logs.
    let _ = if settings.json {
        builder.json().flatten_event(true).finish().try_init()
    } else {
        builder.finish().try_init()
    };
    Ok(())
}

/// Text that must not reach a log, a panic message or a dump of the settings.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::new("mst_abc_def");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.expose(), "mst_abc_def");
    }

    #[test]
    fn a_request_stays_in_the_trace_of_its_caller() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = accept(Some(text));
        assert_eq!(context.trace_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_ne!(context.to_string(), text, "one span further down");
        assert_ne!(accept(Some("nonsense")).trace_id, 0);
        assert_ne!(accept(None).trace_id, accept(None).trace_id);
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused() {
        assert!(check_filter("info,muster_store=debug").is_ok());
        assert!(check_filter("muster_store=loudest").is_err());
    }
}
