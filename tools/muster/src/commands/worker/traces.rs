//! Telemetry of a worker: logs on standard error and, if a collector is configured, a span for each attempt. Log
//! levels do not affect spans, and spans do not affect logs.

use std::{io::IsTerminal, time::Duration};

use muster_domain::WorkerId;
use muster_telemetry::export::{Export, Origin};
use tracing_subscriber::{EnvFilter, Layer, filter::filter_fn, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::outcome::Failure;

/// How long the export of the last spans may take.
pub(super) const FLUSH: Duration = Duration::from_millis(500);

/// Starts both. The caller has to stop the export.
pub(super) fn begin(filter: EnvFilter, endpoint: Option<&str>, worker: &WorkerId) -> Result<Option<Export>, Failure> {
    let ansi = std::io::stderr().is_terminal();
    let Some(endpoint) = endpoint else {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr).init();
        return Ok(None);
    };
    let origin = Origin { service: "muster-worker", instance: worker.as_str(), version: env!("CARGO_PKG_VERSION") };
    let export = Export::install(endpoint, origin).map_err(|fault| Failure::usage(fault.to_string()))?;
    let logs = fmt::layer().with_ansi(ansi).with_writer(std::io::stderr).with_filter(filter);
    let attempts = tracing_opentelemetry::layer()
        .with_tracer(export.tracer())
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(|of| of.is_span() && of.target().starts_with("muster_sdk")));
    tracing_subscriber::registry().with(logs).with(attempts).init();
    Ok(Some(export))
}
