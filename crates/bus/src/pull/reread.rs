//! What the stream keeps of a subject, read again from a moment on.
//!
//! Promises: a reader of its own, of which the server forgets everything half a minute after the last
//! question; what the schedulers share, and how far it has come, is not touched. In order, each message
//! once, up to where the stream ended when the reader was told to begin. What cannot be read is passed over:
//! it is a dead letter by now. Leaves to others: going on after a fault, from the sequence after the last.

use std::time::Duration;

use futures_util::StreamExt;
use muster_domain::Time;
use muster_wire::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    Arrived, Ask, Inbox,
    delivery::{Delivery, Read},
};
use crate::{Bus, BusError, Stream, Subject, jetstream::nanos};

/// A reader that asks for nothing this long is forgotten.
const IDLE: Duration = Duration::from_secs(30);

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RereadFrom {
    /// With the first message that is kept.
    Start,
    /// With the first that was stored at this moment of the server's clock, or later.
    Time(Time),
    /// With this sequence, or the next of the subject.
    Sequence(u64),
}

/// A reader of what [`Stream::Sys`] keeps of one subject.
pub struct Reread {
    bus: Bus,
    name: String,
    inbox: Inbox,
    until: u64,
    over: bool,
}

#[derive(Deserialize)]
struct Made {
    name: String,
}

impl Bus {
    /// A reader of what [`Stream::Sys`] keeps of a subject, up to the sequence `until`.
    pub async fn reread(&self, subject: &Subject, from: RereadFrom, until: u64) -> Result<Reread, BusError> {
        let stream = Stream::Sys.name();
        let mut config = json!({
            "filter_subject": subject.as_str(),
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": nanos(IDLE),
            "mem_storage": true,
        });
        match from {
            RereadFrom::Start => {}
            RereadFrom::Time(time) => {
                config["deliver_policy"] = "by_start_time".into();
                config["opt_start_time"] = time.rfc3339().into();
            }
            RereadFrom::Sequence(sequence) => {
                config["deliver_policy"] = "by_start_sequence".into();
                config["opt_start_seq"] = sequence.max(1).into();
            }
        }
        let ask = json!({ "stream_name": stream, "config": config });
        let made: Made = self.api(&format!("CONSUMER.CREATE.{stream}"), &ask).await?;
        let inbox = Inbox::open(self).await?;
        Ok(Reread { bus: self.clone(), name: made.name, inbox, until, over: false })
    }
}

impl Reread {
    /// The next messages with their sequences, `max` at most; none at the end. After an error this reader is
    /// of no more use.
    pub async fn next(&mut self, max: usize) -> Result<Vec<(u64, Body)>, BusError> {
        let mut kept = Vec::new();
        while kept.is_empty() && !self.over {
            let place = format!("{}.{}", Stream::Sys.name(), self.name);
            self.inbox.ask(&self.bus, &place, Ask::AtOnce(max.max(1))).await?;
            while self.inbox.left > 0 && !self.over {
                let patience = self.inbox.patience();
                let silent = |_| BusError::Timeout { what: self.name.clone(), after: patience };
                let message = timeout(patience, self.inbox.source.next()).await.map_err(silent)?;
                let message = message.ok_or_else(|| BusError::away("the subscription ended"))?;
                match self.inbox.arrived(&message)? {
                    Arrived::Message => match Delivery::read(&self.bus, None, message) {
                        Some((Read::Whole(delivery), _)) if delivery.sequence > self.until => self.over = true,
                        Some((Read::Whole(delivery), pending)) => {
                            kept.push((delivery.sequence, delivery.body));
                            self.over = pending == 0;
                        }
                        // Whoever it was for has made a dead letter of it.
                        Some((Read::Partly(..) | Read::Unreadable(..) | Read::Astray(..), _)) | None => {}
                    },
                    // It had no more than this.
                    Arrived::Ended => self.over = true,
                    Arrived::Heartbeat => {}
                }
            }
        }
        Ok(kept)
    }

    /// Says that no more is wanted. One that cannot be told forgets by itself.
    pub async fn close(self) {
        let verb = format!("CONSUMER.DELETE.{}.{}", Stream::Sys.name(), self.name);
        let _ = self.bus.api::<Value>(&verb, &Value::Null).await;
    }
}
