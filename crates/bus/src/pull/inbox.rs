//! One subscription to which the server delivers, and the account of what it still owes.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use crate::{Bus, BusError, jetstream::nanos};

/// How often the server says that a request still stands.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Silence after which it does not.
const SILENCE: Duration = Duration::from_millis(2_500);
/// How long a standing request stands before it is made again.
const STANDING: Duration = Duration::from_secs(30);

/// What can be asked of the server.
pub(super) enum Ask {
    /// So many, as they come.
    Standing(usize),
    /// At most so many, of what is there.
    AtOnce(usize),
    /// The next one, within a time.
    One(Duration),
}

/// What a message turned out to be.
pub(super) enum Arrived {
    Message,
    Heartbeat,
    /// A request has ended with part of it unserved.
    Ended,
}

pub(super) struct Inbox {
    pub(super) source: Subscriber,
    /// How often the connection had broken when it was opened: what was asked before the
    /// next break is lost.
    pub(super) breaks: u64,
    /// Messages that the server still owes us.
    pub(super) left: usize,
    /// When the server last said anything, or was last asked.
    pub(super) heard: Instant,
    prefix: String,
    asked: u64,
    heartbeats: bool,
    at_once: bool,
}

impl Inbox {
    pub(super) async fn open(bus: &Bus) -> Result<Inbox, BusError> {
        let (breaks, client) = (*bus.breaks().borrow(), &bus.inner.client);
        let prefix = client.new_inbox();
        let opened = client.subscribe(format!("{prefix}.*")).await;
        let source = opened.map_err(|e| BusError::away(e.to_string()))?;
        let heard = Instant::now();
        Ok(Inbox { source, breaks, left: 0, heard, prefix, asked: 0, heartbeats: false, at_once: false })
    }

    /// Whether the server answers the request at once, in full or with its end.
    pub(super) fn bounded(&self) -> bool {
        self.at_once
    }

    /// How long the server may be silent.
    pub(super) fn patience(&self) -> Duration {
        match (self.left, self.heartbeats || self.at_once) {
            (1.., true) => SILENCE,
            // Nothing is owed, or the request ends by itself before silence would tell.
            _ => Duration::from_secs(3_600),
        }
    }

    /// Asks the consumer at this place: its stream and its name.
    pub(super) async fn ask(&mut self, bus: &Bus, place: &str, ask: Ask) -> Result<(), BusError> {
        let (batch, expires) = match ask {
            Ask::Standing(n) => (n, Some(STANDING)),
            Ask::AtOnce(n) => (n, None),
            Ask::One(within) => (1, Some(within)),
        };
        self.at_once = expires.is_none();
        self.heartbeats = expires.is_some_and(|within| within >= SILENCE);
        let mut request = json!({ "batch": batch });
        match expires {
            Some(within) => request["expires"] = nanos(within).into(),
            None => request["no_wait"] = true.into(),
        }
        if self.heartbeats {
            request["idle_heartbeat"] = nanos(HEARTBEAT).into();
        }
        self.asked += 1;
        // The end of a request comes to its own subject, which also says how large it was.
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

    /// Keeps the account. An error means that this inbox is of no more use.
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

/// How many messages of an ended request will not come: as the server says, else all of it.
fn unserved(message: &Message) -> usize {
    let told = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
    let told = told.and_then(|value| value.as_str().parse().ok());
    let whole = || message.subject.rsplit_once('-').and_then(|(_, batch)| batch.parse().ok());
    told.or_else(whole).unwrap_or(usize::MAX)
}
