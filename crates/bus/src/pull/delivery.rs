//! One message taken from a consumer, and the ways to answer for it.

use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use muster_telemetry::events::{Emit, Undecodable};
use muster_wire::{Body, Envelope, decode, v1::DeadLetter};

use crate::{
    Bus,
    subjects::{self, short_hash},
};

/// How long a dead letter may take to its stream.
const LETTER_LIMIT: Duration = Duration::from_secs(10);
/// When an unreadable message comes again whose dead letter could not be written.
const LETTER_AGAIN: Duration = Duration::from_secs(5);

/// A message, read.
pub struct Delivery {
    /// Where it was published.
    pub subject: String,
    /// Who sent it, when; its body is in `body`.
    pub envelope: Envelope,
    /// What it says.
    pub body: Body,
    /// How often it has been delivered, this time included.
    pub delivered: u64,
    /// Its sequence on the stream.
    pub sequence: u64,
    /// When the stream took it, in nanoseconds by the server's clock: the same however often it is delivered.
    pub stored_at: u64,
    /// Answers for it; may be kept when the rest is taken apart.
    pub receipt: Receipt,
}

impl Delivery {
    /// [`Receipt::ack`].
    pub async fn ack(&self) {
        self.receipt.ack().await;
    }

    /// [`Receipt::nak`].
    pub async fn nak(&self, delay: Duration) {
        self.receipt.nak(delay).await;
    }

    /// [`Receipt::in_progress`].
    pub async fn in_progress(&self) {
        self.receipt.in_progress().await;
    }

    /// Reads a message and how many more stand behind it. `None` for one that no consumer
    /// delivered: nobody can answer for it.
    pub(super) fn read(bus: &Bus, message: Message) -> Option<Result<(Delivery, u64), Box<Unreadable>>> {
        let reply = message.reply?;
        let Place { delivered, sequence, stored_at, pending } = Place::parse(&reply)?;
        let (subject, original) = (message.subject, message.payload.clone());
        let receipt = Receipt { bus: bus.clone(), reply, subject, sequence, original };
        Some(match decode(message.payload) {
            Ok((envelope, body)) => {
                let subject = receipt.subject.to_string();
                Ok((Delivery { subject, envelope, body, delivered, sequence, stored_at, receipt }, pending))
            }
            Err(fault) => Err(Box::new(Unreadable { receipt, reason: fault.to_string() })),
        })
    }
}

/// A delivery that could not be read.
pub(super) struct Unreadable {
    pub(super) receipt: Receipt,
    pub(super) reason: String,
}

/// The way to answer for a delivery. None of the answers is confirmed: when one is lost, or
/// NATS is away, the message comes again after its ack wait.
#[derive(Clone)]
pub struct Receipt {
    bus: Bus,
    reply: async_nats::Subject,
    subject: async_nats::Subject,
    sequence: u64,
    original: Bytes,
}

impl Receipt {
    /// Handled: it does not come again.
    pub async fn ack(&self) {
        self.say(Bytes::from_static(b"+ACK")).await;
    }

    /// Not now: it comes again, to whoever asks, after `delay`.
    pub async fn nak(&self, delay: Duration) {
        let word = match delay.as_nanos() {
            0 => Bytes::from_static(b"-NAK"),
            nanos => format!("-NAK {{\"delay\": {nanos}}}").into(),
        };
        self.say(word).await;
    }

    /// Still at it: its ack wait begins anew.
    pub async fn in_progress(&self) {
        self.say(Bytes::from_static(b"+WPI")).await;
    }

    /// Nobody can handle it: it is kept as a dead letter with the reason, and does not come
    /// again. If the dead letter cannot be written it does come again. Also for a caller who
    /// finds that a message carries something else than its subject should.
    pub async fn reject(&self, reason: &str) {
        Undecodable { subject: &self.subject, detail: reason }.emit();
        let letter = DeadLetter {
            subject: self.subject.to_string(),
            reason: reason.to_owned(),
            original: self.original.slice(..self.original.len().min(self.bus.max_message())),
        };
        let id = format!("dead-{}-{}-{}", self.subject, self.sequence, short_hash(&self.original));
        let body = Body::DeadLetter(letter);
        match self.bus.publish_within(&subjects::dlq(), Some(&id), None, body, LETTER_LIMIT).await {
            Ok(()) => self.say(Bytes::from_static(b"+TERM")).await,
            Err(_) => self.nak(LETTER_AGAIN).await,
        }
    }

    async fn say(&self, word: Bytes) {
        // Away: it will be delivered again, which every handler must bear anyway.
        let _ = self.bus.tell(self.reply.clone(), word).await;
    }
}

/// What the subject of an ack says about its delivery.
#[derive(Debug, PartialEq)]
struct Place {
    delivered: u64,
    sequence: u64,
    stored_at: u64,
    pending: u64,
}

impl Place {
    /// `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`,
    /// on newer servers with domain and account before the stream.
    fn parse(reply: &str) -> Option<Place> {
        let parts: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match parts.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let number = |n: usize| parts.get(at + n)?.parse().ok();
        Some(Place { delivered: number(0)?, sequence: number(1)?, stored_at: number(3)?, pending: number(4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ack_subject_are_read() {
        let stored_at = 1_700_000_000_000_000_000;
        let place = Some(Place { delivered: 2, sequence: 40, stored_at, pending: 7 });
        assert_eq!(Place::parse("$JS.ACK.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7"), place);
        assert_eq!(Place::parse("$JS.ACK._.hash.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7.rnd"), place);
        assert_eq!(Place::parse("_INBOX.x"), None);
    }
}
