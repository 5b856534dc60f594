//! Following the stream of events, from now on.
//!
//! The follower delivers every message after the first [`Followed::From`] once and in order, with its position, through
//! breaks of the connection, a consumer that is gone and one that never delivers. After each of these, `From` gives the
//! position where it continues: the same as before, unless the stream was recreated or has lost messages in the
//! meantime. It never gives up. The consumer belongs to this follower alone, messages are not acked, and the server
//! removes the consumer soon after its follower has died. The caller reads what came before, and decides what to do
//! about missing messages.

use std::time::Duration;

use futures_util::StreamExt;
use muster_telemetry::events::{BusAway, Emit, Undecodable};
use muster_wire::decode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep_until;

use super::{
    delivery::StreamPosition,
    inbox::{Arrived, Ask, Inbox},
    proof::Proof,
};
use crate::{
    Bus, BusError, Stream,
    events::{Events, Items, Mark},
    jetstream::{compare, nanos},
    subjects,
};

/// How many messages may be requested ahead.
const AHEAD: usize = 256;
/// How long the server keeps the consumer when no requests come.
const IDLE: Duration = Duration::from_secs(10);

/// What a follower delivers.
#[derive(Debug)]
pub enum Followed {
    /// The following messages come after this position.
    From(Mark),
    /// The next message.
    Events(Events),
}

/// A follower of the stream of events.
pub struct Follower {
    bus: Bus,
    /// The position that the follower has reached.
    at: Option<Mark>,
    open: Option<Open>,
    tries: u32,
}

struct Open {
    inbox: Inbox,
    /// The consumer: stream and name.
    place: String,
    /// None once the consumer has delivered something.
    proof: Option<Proof>,
    delivered: u64,
}

#[derive(Deserialize)]
struct Made {
    name: String,
    config: Value,
}

impl Bus {
    /// Follows the stream of events from the moment when [`Follower::next`] first answers.
    pub fn follow_events(&self) -> Follower {
        Follower { bus: self.clone(), at: None, open: None, tries: 0 }
    }
}

impl Follower {
    /// Waits for the next item, however long it takes. Nothing is lost when the future is dropped, but an attempt to
    /// connect begins anew.
    pub async fn next(&mut self) -> Followed {
        loop {
            match self.turn().await {
                Ok(followed) => return followed,
                Err(fault) => {
                    BusAway { detail: &format!("events: {fault}") }.emit();
                    self.leave().await;
                    Bus::rest(self.tries).await;
                    self.tries = self.tries.saturating_add(1);
                }
            }
        }
    }

    /// Ends the follower and deletes its consumer, so that the server does not keep the consumer until it is idle.
    pub async fn close(mut self) {
        self.leave().await;
    }

    async fn leave(&mut self) {
        if let Some(Open { place, .. }) = self.open.take() {
            // If this message is lost, the server removes the consumer by itself.
            let _ = self.bus.tell(format!("$JS.API.CONSUMER.DELETE.{place}").into(), Default::default()).await;
        }
    }

    async fn turn(&mut self) -> Result<Followed, BusError> {
        let (Some(open), Some(at)) = (self.open.as_mut(), self.at.as_mut()) else {
            return self.open().await.map(Followed::From);
        };
        loop {
            if open.inbox.left <= AHEAD / 2 {
                open.inbox.ask(&self.bus, &open.place, Ask::Standing(AHEAD - open.inbox.left)).await?;
            }
            let Some((place, payload)) = open.heard(&self.bus).await? else { continue };
            self.tries = 0;
            at.seq = place.sequence;
            match decode(payload) {
                Ok((_, body)) => {
                    if let Some(items) = Items::of(body) {
                        return Ok(Followed::Events(Events { mark: *at, items }));
                    }
                }
                Err(fault) => {
                    Undecodable { subject: subjects::all_events().as_str(), detail: &fault.to_string() }.emit();
                }
            }
        }
    }

    /// Creates a consumer that begins at this follower's position.
    async fn open(&mut self) -> Result<Mark, BusError> {
        let (bus, stream) = (&self.bus, Stream::Events);
        bus.connected().await;
        let span = bus.events_span().await?;
        let from = span.start(self.at);
        bus.set_up(stream).await?;
        let inbox = Inbox::open(bus).await?;
        let config = json!({
            // One filter for both kinds of events: nats-server 2.9 takes no second one.
            "filter_subject": subjects::all_events().as_str(),
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": from.seq + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": nanos(IDLE),
            "mem_storage": true,
            "num_replicas": 1,
        });
        let asked = json!({ "stream_name": stream.name(), "config": config });
        let made: Made = bus.api(&format!("CONSUMER.CREATE.{}", stream.name()), &asked).await?;
        compare("the consumer of events", &config, &made.config)?;
        // A consumer that was created on another stream would deliver that stream's messages as if they were of this
        // one.
        if bus.events_span().await?.epoch != span.epoch {
            return Err(BusError::away("the stream of events was created again"));
        }
        let place = format!("{}.{}", stream.name(), made.name);
        self.open = Some(Open { inbox, place, proof: Some(Proof::default()), delivered: 0 });
        self.at = Some(from);
        Ok(from)
    }
}

impl Open {
    /// The next message, if one arrived. An error means that the follower needs another consumer.
    async fn heard(&mut self, bus: &Bus) -> Result<Option<(StreamPosition, bytes::Bytes)>, BusError> {
        let silent_at = self.inbox.heard + self.inbox.patience();
        let look_at = self.proof.as_ref().map_or(silent_at, Proof::due_at);
        let (mut breaks, before) = (bus.breaks(), self.inbox.breaks);
        let message = tokio::select! {
            biased;
            message = self.inbox.source.next() => Some(message.ok_or_else(|| BusError::away("the subscription ended"))?),
            _ = breaks.wait_for(|now| *now != before) => return Err(BusError::away("the connection broke")),
            () = sleep_until(silent_at) => {
                let what = format!("no heartbeat from {}", self.place);
                return Err(BusError::Timeout { what, after: self.inbox.patience() });
            }
            () = sleep_until(look_at), if self.proof.is_some() => None,
        };
        let Some(message) = message else {
            if let Some(proof) = &mut self.proof
                && proof.look(bus, &self.place).await?
            {
                self.proof = None;
            }
            return Ok(None);
        };
        let Arrived::Message = self.inbox.arrived(&message)? else { return Ok(None) };
        let Some(place) = message.reply.as_deref().and_then(StreamPosition::parse) else { return Ok(None) };
        self.proof = None;
        self.delivered += 1;
        if place.nth != self.delivered {
            return Err(BusError::away("a message was lost between NATS and this process"));
        }
        Ok(Some((place, message.payload)))
    }
}
