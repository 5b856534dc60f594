//! One message taken from a consumer, and the ways to acknowledge it.

use std::time::Duration;

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use muster_telemetry::events::{Emit, Undecodable};
use muster_wire::{Body, Envelope, decode, v1::DeadLetter};

use crate::{
    Bus, Stream, Subject,
    offers::{self, Bad},
    subjects::{self, short_hash},
};

/// How long writing a dead letter to its stream may take.
const LETTER_LIMIT: Duration = Duration::from_secs(10);
/// When an unreadable message is redelivered whose dead letter could not be written, or whose jobs were not rejected.
const LETTER_AGAIN: Duration = Duration::from_secs(5);

/// A message after decoding.
pub struct Delivery {
    /// The subject that it was published on.
    pub subject: String,
    /// The sender and the time; the content is in `body`.
    pub envelope: Envelope,
    /// The content of the message.
    pub body: Body,
    /// How often the message has been delivered, including this time.
    pub delivered: u64,
    /// The message's sequence on the stream.
    pub sequence: u64,
    /// When the stream stored the message, in nanoseconds by the server's clock: the same for every delivery.
    pub stored_at: u64,
    /// Acknowledges the message; may be kept when the rest is taken apart.
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

    /// Reads a message, which must have this subject if one is given, and how many more messages wait behind it. `None`
    /// for a message that no consumer delivered: it cannot be acknowledged.
    pub(super) fn read(bus: &Bus, filter: Option<&Subject>, message: Message) -> Option<(Read, u64)> {
        let reply = message.reply?;
        let StreamPosition { delivered, sequence, stored_at, pending, .. } = StreamPosition::parse(&reply)?;
        let (subject, original, headers) = (message.subject, message.payload.clone(), message.headers);
        let receipt = Receipt { bus: bus.clone(), reply, subject, sequence, original, headers };
        if filter.is_some_and(|filter| filter.as_str() != receipt.subject.as_str()) {
            return Some((Read::Astray(receipt), pending));
        }
        let (envelope, mut body) = match decode(message.payload) {
            Ok(read) => read,
            Err(fault) => return Some((Read::Unreadable(receipt, fault.to_string()), pending)),
        };
        let subject = receipt.subject.to_string();
        let bad = match &mut body {
            Body::Offer(group) => offers::weed(&subject, &mut group.items),
            _ => None,
        };
        let delivery = Delivery { subject, envelope, body, delivered, sequence, stored_at, receipt };
        Some(match bad {
            None => (Read::Whole(delivery), pending),
            Some(bad) => (Read::Partly(delivery, bad), pending),
        })
    }

    /// Handles the invalid offers that were removed from the message: rejects their jobs and, for offers that name no
    /// job, writes a dead letter. Returns the rest to be handled. If any of that fails, the whole message is
    /// redelivered.
    pub(super) async fn without(self, bad: Bad) -> Option<Delivery> {
        for fault in &bad.senseless {
            tracing::warn!(subject = %self.subject, "rejecting a job, because its offer is invalid: {fault}");
        }
        let receipt = &self.receipt;
        let done = receipt.bus.reject_jobs(&self.subject, &bad.jobs).await
            && (bad.nameless.is_empty() || receipt.bury(&bad.nameless.join("; ")).await);
        let empty = matches!(&self.body, Body::Offer(group) if group.items.is_empty());
        match done {
            false => receipt.nak(LETTER_AGAIN).await,
            true if empty => receipt.terminate().await,
            true => return Some(self),
        }
        None
    }
}

/// The result of reading a message.
pub(super) enum Read {
    /// The whole message makes sense.
    Whole(Delivery),
    /// Some of its offers make no sense, and were removed.
    Partly(Delivery, Bad),
    /// The message cannot be read, with the reason.
    Unreadable(Receipt, String),
    /// The consumer does not carry this subject.
    Astray(Receipt),
}

/// Acknowledges a delivery. No acknowledgement is confirmed: if one is lost, or NATS is away, the message is
/// redelivered after its ack wait.
#[derive(Clone)]
pub struct Receipt {
    bus: Bus,
    reply: async_nats::Subject,
    subject: async_nats::Subject,
    sequence: u64,
    original: Bytes,
    headers: Option<HeaderMap>,
}

impl Receipt {
    /// Handled: the message is not redelivered.
    pub async fn ack(&self) {
        self.say(Bytes::from_static(b"+ACK")).await;
    }

    /// Not now: the message is redelivered, to any process that asks, after `delay`.
    pub async fn nak(&self, delay: Duration) {
        let word = match delay.as_nanos() {
            0 => Bytes::from_static(b"-NAK"),
            nanos => format!("-NAK {{\"delay\": {nanos}}}").into(),
        };
        self.say(word).await;
    }

    /// Still working: the ack wait begins anew.
    pub async fn in_progress(&self) {
        self.say(Bytes::from_static(b"+WPI")).await;
    }

    /// The message cannot be handled: rejects the jobs that its header names, writes a dead letter with the reason, and
    /// stops redelivery. If any of that fails, the message is redelivered. Also for a caller that finds a body which
    /// does not belong on the subject.
    pub async fn reject(&self, reason: &str) {
        let jobs = offers::jobs_of(self.headers.as_ref());
        match self.bus.reject_jobs(&self.subject, &jobs).await && self.bury(reason).await {
            true => self.terminate().await,
            false => self.nak(LETTER_AGAIN).await,
        }
    }

    /// Writes a dead letter; false if that fails.
    async fn bury(&self, reason: &str) -> bool {
        Undecodable { subject: &self.subject, detail: reason }.emit();
        let letter = DeadLetter {
            subject: self.subject.to_string(),
            reason: reason.to_owned(),
            original: self.original.slice(..self.original.len().min(self.bus.max_message())),
        };
        let id = format!("dead-{}-{}-{}", self.subject, self.sequence, short_hash(&self.original));
        let body = Body::DeadLetter(letter);
        self.bus.publish_within(&subjects::dlq(), Some(&id), None, body, LETTER_LIMIT).await.is_ok()
    }

    /// The server delivered a message that this consumer does not carry; the consumer that carries it gets it as well.
    /// Stops redelivery here, unless the stream would then delete it for that consumer, too.
    pub(super) async fn pass_on(&self, stream: Stream) {
        tracing::warn!(event = "astray", subject = %self.subject, "NATS delivered a message of another consumer");
        if stream != Stream::Jobs {
            self.terminate().await;
        }
    }

    /// Stops redelivery to any process.
    async fn terminate(&self) {
        self.say(Bytes::from_static(b"+TERM")).await;
    }

    async fn say(&self, word: Bytes) {
        // If NATS is away, the message is redelivered, which every handler must tolerate anyway.
        let _ = self.bus.tell(self.reply.clone(), word).await;
    }
}

/// What the reply subject of a message says about its delivery.
#[derive(Debug, PartialEq)]
pub(super) struct StreamPosition {
    delivered: u64,
    pub(super) sequence: u64,
    /// The number of this delivery among all deliveries of its consumer.
    pub(super) nth: u64,
    stored_at: u64,
    pending: u64,
}

impl StreamPosition {
    /// Parses `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`; newer servers put
    /// domain and account before the stream.
    pub(super) fn parse(reply: &str) -> Option<StreamPosition> {
        let parts: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match parts.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let number = |n: usize| parts.get(at + n)?.parse().ok();
        let (delivered, sequence, nth) = (number(0)?, number(1)?, number(2)?);
        Some(StreamPosition { delivered, sequence, nth, stored_at: number(3)?, pending: number(4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ack_subject_are_read() {
        let stored_at = 1_700_000_000_000_000_000;
        let position = Some(StreamPosition { delivered: 2, sequence: 40, nth: 39, stored_at, pending: 7 });
        assert_eq!(StreamPosition::parse("$JS.ACK.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7"), position);
        assert_eq!(
            StreamPosition::parse("$JS.ACK._.hash.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7.rnd"),
            position
        );
        assert_eq!(StreamPosition::parse("_INBOX.x"), None);
    }
}
