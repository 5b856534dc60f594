//! A client that watches events and keeps what it receives.

use std::time::Duration;

use muster_sdk::sse::Frames;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::{Probe, probe::http};

/// One connection to a gateway's `/events`.
pub struct Watch {
    response: reqwest::Response,
    frames: Frames,
    /// The id of the last event.
    pub last_id: Option<String>,
}

impl Probe {
    /// Watches the events that the query selects, after the event with this id.
    pub async fn watch(&self, query: &str, after: Option<&str>) -> Watch {
        let mut request = self.signed(http().get(format!("{}/api/v1/events?{query}", self.base)));
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let response = request.timeout(Duration::from_secs(600)).send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{query}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Watch { response, frames: Frames::default(), last_id: after.map(str::to_owned) }
    }
}

impl Watch {
    /// The next event; `None` once the connection is closed. Panics if nothing arrives within the time.
    pub async fn next(&mut self, within: Duration) -> Option<Value> {
        // Skip pings, which arrive at any time.
        let deadline = Instant::now() + within;
        loop {
            for frame in self.frames.by_ref() {
                self.last_id = frame.id.or(self.last_id.take());
                if !frame.data.is_empty() {
                    return Some(serde_json::from_str(&frame.data).expect("an event is JSON"));
                }
            }
            match timeout_at(deadline, self.response.chunk()).await.expect("something within the time") {
                Ok(Some(bytes)) => self.frames.feed(&bytes),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next event, which must arrive.
    pub async fn told(&mut self, within: Duration) -> Value {
        self.next(within).await.expect("the connection stands")
    }
}
