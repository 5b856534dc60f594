//! The admin port: `/metrics`, `/livez`, `/readyz`, `/loops`.
//!
//! It serves what operators and scrapers read. It outlives all stop stages, so that a last scrape sees the drain. It
//! has no authentication; keep the port private.

use axum::{Json, Router, http::header, routing::get};
use muster_telemetry::Exporter;

use crate::{health::Health, loops::Registry};

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes of the admin port.
pub fn routes(exporter: &Exporter, health: &Health, loops: &Registry) -> Router {
    let (exporter, loops) = (exporter.clone(), loops.clone());
    Router::new()
        .route("/metrics", get(move || async move { ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], exporter.render()) }))
        .route("/loops", get(move || async move { Json(loops.show()) }))
        .merge(health.routes())
}
