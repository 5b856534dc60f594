//! Metrics, logs, traces and notable faults of the services.
//!
//! This crate knows the name, help text and labels of every metric ([`metrics`]), the notable faults that are logged
//! and counted by one call ([`events`], for panics [`panics`]), logs and W3C trace context ([`trace`]), and, with the
//! feature `otlp`, the spans of services and their export ([`spans`], [`export`]). A metric or fault exists once, as a
//! value of an enum or a struct, so that dashboards cannot name a metric that no code writes. Labels stay bounded
//! whatever callers pass. Recording before [`Exporter::install`] is a cheap no-op. `chassis` serves the text, and every
//! crate decides what is worth counting.

pub mod events;
#[cfg(feature = "otlp")]
pub mod export;
pub mod metrics;
pub mod panics;
#[cfg(feature = "otlp")]
pub mod spans;
pub mod trace;

pub use events::Emit;
pub use metrics::{Counter, Exporter, Gauge, Histogram, count, observe, set, topic_label};
pub use panics::{Panicked, Pauses, caught};
pub use trace::{LogFault, LogSettings, Secret, init_logs};
