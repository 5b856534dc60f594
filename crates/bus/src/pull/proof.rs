//! Checks whether a newly created consumer delivers at all.
//!
//! nats-server 2.9 sometimes creates a consumer that never delivers, when another process recreates its stream at the
//! same moment: requests are open, messages wait, heartbeats come, and nothing moves. So until the first message has
//! come, the server is asked at growing intervals whether messages are pending. If a consumer has never delivered
//! anything while messages wait, at two checks a second and a half apart, it is deleted, and the next pull creates it
//! again. Nothing is lost by that: nothing had been delivered. Once a consumer has delivered, it is never checked
//! again.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{Bus, BusError};

/// The time between a first suspicion and the check that confirms it, and before the first check.
const SOON: Duration = Duration::from_millis(1_500);
/// The longest pause between two checks of a consumer that has had nothing to deliver yet.
const LATEST: Duration = Duration::from_secs(30);

pub(super) struct Proof {
    due: Instant,
    pause: Duration,
    /// The creation time of the consumer that had pending messages at the last check.
    doubted: Option<String>,
}

impl Default for Proof {
    fn default() -> Proof {
        Proof { due: Instant::now() + SOON, pause: SOON, doubted: None }
    }
}

#[derive(Deserialize)]
struct Info {
    created: String,
    num_pending: u64,
    delivered: Delivered,
}

#[derive(Deserialize)]
struct Delivered {
    consumer_seq: u64,
}

impl Proof {
    pub(super) fn due_at(&self) -> Instant {
        self.due
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Returns true if the consumer has delivered, to any process. Returns an error if it never did and never will: it
    /// has been deleted, and must be created again.
    pub(super) async fn look(&mut self, bus: &Bus, place: &str) -> Result<bool, BusError> {
        let info = bus.api::<Info>(&format!("CONSUMER.INFO.{place}"), &Value::Null).await;
        let owed = match &info {
            Ok(info) if info.delivered.consumer_seq > 0 => return Ok(true),
            Ok(info) if info.num_pending > 0 => Some(info.created.clone()),
            // The consumer is gone or NATS is away: the open request will show it.
            Ok(_) | Err(_) => None,
        };
        if owed.is_some() && owed == self.doubted {
            *self = Proof::default();
            let _ = bus.api::<Value>(&format!("CONSUMER.DELETE.{place}"), &Value::Null).await;
            let what = format!("{place}: the consumer delivers none of its pending messages, and is created again");
            return Err(BusError::Timeout { what, after: SOON });
        }
        self.pause = if owed.is_some() { SOON } else { (self.pause * 2).min(LATEST) };
        self.due = Instant::now() + self.pause;
        self.doubted = owed;
        Ok(false)
    }
}
