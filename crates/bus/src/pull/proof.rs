//! Whether a consumer that was just made delivers at all.
//!
//! nats-server 2.9 sometimes makes a consumer that never does, when its stream is made again at the
//! same moment by somebody else: requests stand, messages stand, heartbeats come, and nothing moves.
//! So until the first message has come the server is asked, at growing intervals, whether it owes us
//! one. A consumer that has never delivered anything while messages stand there, at two looks a
//! second and a half apart, is deleted, and whoever pulls next makes it again. Nothing is lost by that: nothing
//! had been delivered. Once it has delivered, it is never asked again.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{Bus, BusError};

/// Between a doubt and the look that settles it, and before the first look.
const SOON: Duration = Duration::from_millis(1_500);
/// Longest pause between two looks at a consumer that has had nothing to deliver yet.
const LATEST: Duration = Duration::from_secs(30);

pub(super) struct Proof {
    due: Instant,
    pause: Duration,
    /// When the consumer was made that owed us messages at the last look.
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

    /// True if it has delivered, to whomever. An error if it never did and never will: it has been
    /// deleted, and must be made again.
    pub(super) async fn look(&mut self, bus: &Bus, place: &str) -> Result<bool, BusError> {
        let info = bus.api::<Info>(&format!("CONSUMER.INFO.{place}"), &Value::Null).await;
        let owed = match &info {
            Ok(info) if info.delivered.consumer_seq > 0 => return Ok(true),
            Ok(info) if info.num_pending > 0 => Some(info.created.clone()),
            // Gone or away: the request that stands there will tell.
            Ok(_) | Err(_) => None,
        };
        if owed.is_some() && owed == self.doubted {
            *self = Proof::default();
            let _ = bus.api::<Value>(&format!("CONSUMER.DELETE.{place}"), &Value::Null).await;
            let what = format!("{place}: it delivers nothing of what stands there, and is made again");
            return Err(BusError::Timeout { what, after: SOON });
        }
        self.pause = if owed.is_some() { SOON } else { (self.pause * 2).min(LATEST) };
        self.due = Instant::now() + self.pause;
        self.doubted = owed;
        Ok(false)
    }
}
