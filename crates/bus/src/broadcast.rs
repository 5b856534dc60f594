//! Plain subscriptions: hints, notices and requests, none of which is stored.
//!
//! A subscription survives reconnects. A message that cannot be read is logged, counted and skipped. A message may be
//! lost, so callers must be able to recover from a lost broadcast.

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_telemetry::events::{Emit, Undecodable};
use muster_wire::{Body, Envelope, decode};

use crate::{Bus, BusError, Subject};

impl Bus {
    /// Sends to all subscribers. No ack, no retry; fails at once while NATS is away. A stream that captures the subject
    /// still stores the message.
    pub async fn broadcast(&self, subject: &Subject, body: Body) -> Result<(), BusError> {
        self.tell(subject.raw(), self.sealed(None, body)).await
    }

    /// [`Bus::broadcast`] for a message that may be repeated: a stream that captures the subject keeps only the first
    /// message with this id within two minutes. Subscribers receive each repetition.
    pub async fn broadcast_once(&self, subject: &Subject, id: &str, body: Body) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        self.tell_with(headers, subject.raw(), self.sealed(None, body)).await
    }

    /// Subscribes to all messages, or as a member of a queue group, in which one member receives each message.
    pub async fn subscribe(&self, subject: &Subject, queue: Option<&str>) -> Result<Subscription, BusError> {
        let client = &self.inner.client;
        let opened = match queue {
            Some(queue) => client.queue_subscribe(subject.raw(), queue.to_owned()).await,
            None => client.subscribe(subject.raw()).await,
        };
        let source = opened.map_err(|e| BusError::away(e.to_string()))?;
        Ok(Subscription { bus: self.clone(), source, drained: None })
    }

    /// [`Bus::subscribe`] to all messages, and waits until the server knows the subscription: every message sent after
    /// this returns is received.
    pub async fn subscribe_now(&self, subject: &Subject) -> Result<Subscription, BusError> {
        let subscription = self.subscribe(subject, None).await?;
        // A server reads one connection in order: a message to ourselves comes back after the server knows the
        // subscription.
        let (client, limit) = (&self.inner.client, self.inner.settings.request_timeout);
        let inbox = client.new_inbox();
        let echo = async {
            let mut heard = client.subscribe(inbox.clone()).await.map_err(|e| BusError::away(e.to_string()))?;
            client.publish(inbox, Bytes::new()).await.map_err(|e| BusError::away(e.to_string()))?;
            heard.next().await.ok_or_else(|| BusError::away("the connection is closed"))
        };
        match tokio::time::timeout(limit, echo).await {
            Ok(heard) => heard.map(|_| subscription),
            Err(_) => Err(BusError::Timeout { what: format!("subscribe to {subject}"), after: limit }),
        }
    }
}

/// The messages of one subject, as they arrive.
pub struct Subscription {
    bus: Bus,
    source: async_nats::Subscriber,
    /// How often the connection had broken when this subscription was drained, if it was.
    drained: Option<u64>,
}

impl Subscription {
    /// The next message that can be read. `None` once the subscription was drained, or the connection was closed for
    /// good. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Received> {
        loop {
            let Some(message) = self.source.next().await else {
                self.left().await;
                return None;
            };
            // No sender sends nothing: this message checks a stream.
            if message.payload.is_empty() {
                continue;
            }
            match decode(message.payload) {
                Ok((envelope, body)) => {
                    let reply = message.reply;
                    return Some(Received { envelope, body, reply, bus: self.bus.clone() });
                }
                Err(fault) => Undecodable { subject: &message.subject, detail: &fault.to_string() }.emit(),
            }
        }
    }

    /// Stops listening; messages that have already arrived can still be read.
    pub async fn drain(&mut self) {
        self.drained = Some(*self.bus.breaks().borrow());
        // An error means that the connection is closed, and with it the subscription.
        let _ = self.source.drain().await;
    }

    /// Reconnects if the connection broke during the drain. The client library renews the subscription on the new
    /// connection and then forgets it; the server would then send a share of the group's messages to a subscription
    /// without a reader. One more reconnect begins without the subscription.
    async fn left(&mut self) {
        let Some(before) = self.drained.take() else { return };
        if *self.bus.breaks().borrow() != before {
            let _ = self.bus.inner.client.force_reconnect().await;
        }
    }
}

/// One message of a subscription.
pub struct Received {
    /// The sender and the time; the content is in `body`.
    pub envelope: Envelope,
    /// The content of the message.
    pub body: Body,
    reply: Option<async_nats::Subject>,
    bus: Bus,
}

impl Received {
    /// Whether the sender waits for an answer.
    pub fn wants_answer(&self) -> bool {
        self.reply.is_some()
    }

    /// Answers the sender; does nothing if the sender does not wait for an answer.
    pub async fn respond(&self, body: Body) -> Result<(), BusError> {
        match &self.reply {
            Some(reply) => self.bus.tell(reply.clone(), self.bus.sealed(None, body)).await,
            None => Ok(()),
        }
    }

    /// Splits off what is needed to answer later.
    pub fn into_parts(self) -> (Envelope, Body, Answer) {
        (self.envelope, self.body, Answer { reply: self.reply, bus: self.bus })
    }
}

/// The means to answer a sender.
pub struct Answer {
    reply: Option<async_nats::Subject>,
    bus: Bus,
}

impl Answer {
    /// Answers; does nothing if the sender does not wait for an answer.
    pub async fn send(self, body: Body) -> Result<(), BusError> {
        match self.reply {
            Some(reply) => self.bus.tell(reply, self.bus.sealed(None, body)).await,
            None => Ok(()),
        }
    }
}
