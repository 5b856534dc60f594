//! Reads again, from a moment on, the messages of a subject that the stream has kept.
//!
//! The reader has its own consumer, which the server removes half a minute after the last request. The consumer that
//! the schedulers share, and its progress, are not touched. The reader delivers each message once and in order, up to
//! the end that the stream had when the reader was created. Messages that cannot be read are skipped: they are dead
//! letters by now. After a fault the caller continues with the sequence after the last one.

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

/// The server removes a reader that sends no request for this long.
const IDLE: Duration = Duration::from_secs(30);

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RereadFrom {
    /// With the first message that is kept.
    Start,
    /// With the first message that was stored at this moment of the server's clock, or later.
    Time(Time),
    /// With this sequence, or the next one of the subject.
    Sequence(u64),
}

/// A reader of the messages of one subject that [`Stream::Sys`] has kept.
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
    /// A reader of the messages of a subject that [`Stream::Sys`] has kept, up to the sequence `until`.
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
    /// The next messages with their sequences, at most `max`; none at the end. After an error this reader can no longer
    /// be used.
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
                        // The consumer that the message was meant for has made a dead letter of it.
                        Some((Read::Partly(..) | Read::Unreadable(..) | Read::Astray(..), _)) | None => {}
                    },
                    // The stream held no more than this.
                    Arrived::Ended => self.over = true,
                    Arrived::Heartbeat => {}
                }
            }
        }
        Ok(kept)
    }

    /// Deletes the reader's consumer. If that fails, the server removes it by itself.
    pub async fn close(self) {
        let verb = format!("CONSUMER.DELETE.{}.{}", Stream::Sys.name(), self.name);
        let _ = self.bus.api::<Value>(&verb, &Value::Null).await;
    }
}
