//! One subscription to which the server delivers, and the count of messages that the server still owes.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use crate::{Bus, BusError, jetstream::nanos};

/// How often the server confirms that a request is still open.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After this much silence, a request counts as lost.
const SILENCE: Duration = Duration::from_millis(2_500);
/// How long a standing request stays open before it is made again. Short: while it is open, the server may send
/// messages to a frozen process.
const STANDING: Duration = Duration::from_secs(1);
/// How late the server may end a standing request before the request counts as lost.
const STANDING_GRACE: Duration = Duration::from_millis(750);

/// No limit on silence.
const UNLIMITED: Duration = Duration::from_secs(3_600);

/// The kinds of requests to the server.
pub(super) enum Ask {
    /// This many messages, as they come.
    Standing(usize),
    /// At most this many of the messages that are there now.
    AtOnce(usize),
    /// The next message, within this time.
    One(Duration),
}

/// The kind of an arrived message.
pub(super) enum Arrived {
    Message,
    Heartbeat,
    /// A request has ended before it was fully served.
    Ended,
}

pub(super) struct Inbox {
    pub(super) source: Subscriber,
    /// How often the connection had broken when the inbox was opened: requests are lost at the next break.
    pub(super) breaks: u64,
    /// The number of messages that the server still owes.
    pub(super) left: usize,
    /// When the server last sent anything, or was last asked.
    pub(super) heard: Instant,
    prefix: String,
    asked: u64,
    /// How long the server may be silent while it owes messages.
    patience: Duration,
    at_once: bool,
}

impl Inbox {
    pub(super) async fn open(bus: &Bus) -> Result<Inbox, BusError> {
        let (breaks, client) = (*bus.breaks().borrow(), &bus.inner.client);
        let prefix = client.new_inbox();
        let opened = client.subscribe(format!("{prefix}.*")).await;
        let source = opened.map_err(|e| BusError::away(e.to_string()))?;
        let heard = Instant::now();
        Ok(Inbox { source, breaks, left: 0, heard, prefix, asked: 0, patience: UNLIMITED, at_once: false })
    }

    /// Whether the server answers the request at once, in full or with its end.
    pub(super) fn bounded(&self) -> bool {
        self.at_once
    }

    /// How long the server may be silent.
    pub(super) fn patience(&self) -> Duration {
        if self.left > 0 { self.patience } else { UNLIMITED }
    }

    /// Sends a request to the consumer at this place: its stream and its name.
    pub(super) async fn ask(&mut self, bus: &Bus, place: &str, ask: Ask) -> Result<(), BusError> {
        let (batch, expires, patience) = match ask {
            Ask::Standing(n) => (n, Some(STANDING), STANDING + STANDING_GRACE),
            Ask::AtOnce(n) => (n, None, SILENCE),
            // A short request ends by itself before the silence limit.
            Ask::One(within) => (1, Some(within), if within < SILENCE { UNLIMITED } else { SILENCE }),
        };
        self.at_once = expires.is_none();
        self.patience = patience;
        let heartbeats = expires.is_some_and(|within| within >= SILENCE);
        let mut request = json!({ "batch": batch });
        match expires {
            Some(within) => request["expires"] = nanos(within).into(),
            None => request["no_wait"] = true.into(),
        }
        if heartbeats {
            request["idle_heartbeat"] = nanos(HEARTBEAT).into();
        }
        self.asked += 1;
        // The end of a request arrives on the request's own subject, which also contains its size.
        let reply = format!("{}.{}-{batch}", self.prefix, self.asked);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{place}");
        let body = Bytes::from(request.to_string());
        let sent = bus.inner.client.publish_with_reply(subject, reply, body);
        let wait = bus.inner.settings.request_timeout;
        match tokio::time::timeout(wait, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(BusError::away(e.to_string())),
            Err(_) => return Err(BusError::away("the connection's queue is full")),
        }
        self.left += batch;
        self.heard = Instant::now();
        Ok(())
    }

    /// Updates the count. An error means that this inbox can no longer be used.
    pub(super) fn arrived(&mut self, message: &Message) -> Result<Arrived, BusError> {
        self.heard = Instant::now();
        let said = || message.description.clone().unwrap_or_default();
        match message.status {
            None | Some(StatusCode::OK) => {
                self.left = self.left.saturating_sub(1);
                Ok(Arrived::Message)
            }
            Some(StatusCode::IDLE_HEARTBEAT) => Ok(Arrived::Heartbeat),
            Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => {
                self.left = self.left.saturating_sub(unserved(message));
                Ok(Arrived::Ended)
            }
            Some(StatusCode::NO_RESPONDERS) => Err(BusError::NoResponders { subject: "the consumer".to_owned() }),
            // The consumer is gone, has a new leader, or has too many requests.
            Some(StatusCode::REQUEST_TERMINATED) => {
                Err(BusError::Refused { code: 503, err_code: 409, description: said() })
            }
            Some(other) => Err(BusError::Refused { code: other.as_u16(), err_code: 0, description: said() }),
        }
    }
}

/// How many messages of an ended request will not come: the number from the server, else all of them.
fn unserved(message: &Message) -> usize {
    let pending = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
    let pending = pending.and_then(|value| value.as_str().parse().ok());
    let whole = || message.subject.rsplit_once('-').and_then(|(_, batch)| batch.parse().ok());
    pending.or_else(whole).unwrap_or(usize::MAX)
}
