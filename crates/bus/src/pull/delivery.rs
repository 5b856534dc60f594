//! One message taken from a consumer, and the ways to answer for it.

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

/// How long a dead letter may take to its stream.
const LETTER_LIMIT: Duration = Duration::from_secs(10);
/// When an unreadable message comes again whose dead letter could not be written, or whose jobs nobody rejected.
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

    /// Reads a message of this subject, if it has to be of one, and how many more stand behind it. `None` for
    /// one that no consumer delivered: nobody can answer for it.
    pub(super) fn read(bus: &Bus, filter: Option<&Subject>, message: Message) -> Option<(Read, u64)> {
        let reply = message.reply?;
        let Place { delivered, sequence, stored_at, pending, .. } = Place::parse(&reply)?;
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

    /// Sees to offers that were taken out of it: their jobs are rejected, and for those that name none it is
    /// kept as a dead letter. Gives back what is left to be handled; if none of that could be done it comes
    /// again as a whole.
    pub(super) async fn without(self, bad: Bad) -> Option<Delivery> {
        for fault in &bad.senseless {
            tracing::warn!(subject = %self.subject, "rejects a job whose offer makes no sense: {fault}");
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

/// What a message turned out to be.
pub(super) enum Read {
    /// All of it makes sense.
    Whole(Delivery),
    /// Some of its offers do not, and were taken out.
    Partly(Delivery, Bad),
    /// Nobody knows what it says, and why.
    Unreadable(Receipt, String),
    /// Its consumer does not carry it.
    Astray(Receipt),
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
    headers: Option<HeaderMap>,
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

    /// Nobody can handle it: the jobs that it offers by its header are rejected, it is kept as a dead
    /// letter with the reason, and does not come again. If one of that cannot be done it does come
    /// again. Also for a caller who finds that a message carries something else than its subject should.
    pub async fn reject(&self, reason: &str) {
        let jobs = offers::jobs_of(self.headers.as_ref());
        match self.bus.reject_jobs(&self.subject, &jobs).await && self.bury(reason).await {
            true => self.terminate().await,
            false => self.nak(LETTER_AGAIN).await,
        }
    }

    /// Keeps it as a dead letter; false if that cannot be written.
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

    /// Not for this consumer, though the server delivered it here: the one that carries it gets it all the same. It
    /// does not come here again, unless the stream would forget it for that one, too.
    pub(super) async fn pass_on(&self, stream: Stream) {
        tracing::warn!(event = "astray", subject = %self.subject, "nats delivered what this consumer does not carry");
        if stream != Stream::Jobs {
            self.terminate().await;
        }
    }

    /// It does not come again, whoever might want it.
    async fn terminate(&self) {
        self.say(Bytes::from_static(b"+TERM")).await;
    }

    async fn say(&self, word: Bytes) {
        // Away: it will be delivered again, which every handler must bear anyway.
        let _ = self.bus.tell(self.reply.clone(), word).await;
    }
}

/// What the subject of an ack says about its delivery.
#[derive(Debug, PartialEq)]
pub(super) struct Place {
    delivered: u64,
    pub(super) sequence: u64,
    /// The how-manieth delivery of its consumer this is.
    pub(super) nth: u64,
    stored_at: u64,
    pending: u64,
}

impl Place {
    /// `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`,
    /// on newer servers with domain and account before the stream.
    pub(super) fn parse(reply: &str) -> Option<Place> {
        let parts: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match parts.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let number = |n: usize| parts.get(at + n)?.parse().ok();
        let (delivered, sequence, nth) = (number(0)?, number(1)?, number(2)?);
        Some(Place { delivered, sequence, nth, stored_at: number(3)?, pending: number(4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ack_subject_are_read() {
        let stored_at = 1_700_000_000_000_000_000;
        let place = Some(Place { delivered: 2, sequence: 40, nth: 39, stored_at, pending: 7 });
        assert_eq!(Place::parse("$JS.ACK.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7"), place);
        assert_eq!(Place::parse("$JS.ACK._.hash.MUSTER_SYS.dur_a__b.2.40.39.1700000000000000000.7.rnd"), place);
        assert_eq!(Place::parse("_INBOX.x"), None);
    }
}
