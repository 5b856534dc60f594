//! Graphs of workflows and runs as answers: which formats there are, and their content types.

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use muster_engine::definition::GraphFormat;

use super::json;

/// Reads the parameter `format`.
pub(super) fn read_format(given: &str) -> Result<GraphFormat, &'static str> {
    match given {
        "svg" => Ok(GraphFormat::Svg),
        "mermaid" => Ok(GraphFormat::Mermaid),
        _ => Err("is `svg` or `mermaid`"),
    }
}

/// A graph as the answer of a request.
pub(super) fn drawing(format: GraphFormat, text: String) -> Response {
    let kind = match format {
        GraphFormat::Svg => "image/svg+xml",
        GraphFormat::Mermaid => "text/vnd.mermaid",
    };
    let mut response = json(StatusCode::OK, text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
