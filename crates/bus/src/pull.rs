//! Pulling from a durable consumer.
//!
//! A fetch returns as soon as there is a message. With prefetch, a standing request keeps messages at hand; without
//! prefetch, no message is taken for which the caller has no room. A pull recovers by itself from a broken connection,
//! a missed heartbeat, a consumer or stream that is gone, a server that came back empty, and a consumer that exists and
//! never delivers. A message that cannot be read becomes a dead letter and does not delay other messages. Offers that
//! make no sense (`offers`) do not reach a caller, and neither do messages that the consumer does not carry, which
//! nats-server 2.9 was seen to deliver. The caller must be able to handle a message twice, which may always happen.

mod delivery;
mod follow;
mod inbox;
mod proof;
mod reread;

use std::{collections::VecDeque, time::Duration};

use async_nats::Message;
use futures_util::{FutureExt, StreamExt};
use muster_telemetry::{
    caught,
    events::{BusAway, Emit},
};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use delivery::Read;
pub use delivery::{Delivery, Receipt};
pub use follow::{Followed, Follower};
use inbox::{Arrived, Ask, Inbox};
use proof::Proof;
pub use reread::{Reread, RereadFrom};

use crate::{Bus, BusError, ConsumerSpec};

/// How long the rest of a batch may take once its first message is here.
const GATHER: Duration = Duration::from_millis(20);
/// How late the server may report that a request has expired.
const GRACE: Duration = Duration::from_millis(250);
/// How many unreadable messages are handled at one time; further ones are redelivered later.
const LETTERS: usize = 256;

/// A durable consumer, as one of the processes that share it.
pub struct Consumer {
    bus: Bus,
    spec: ConsumerSpec,
    pull: Mutex<Pull>,
}

/// All state lives here rather than in a fetch, so that a fetch may be dropped at any time.
#[derive(Default)]
struct Pull {
    inbox: Option<Inbox>,
    ready: VecDeque<Delivery>,
    /// Tasks for messages that cannot be read in whole or in part; each returns the readable rest, if any.
    letters: JoinSet<Option<Delivery>>,
    /// Whether the consumer existed at the last check.
    checked: bool,
    /// None once the consumer has delivered something.
    proof: Option<Proof>,
    /// Whether the stream held no further message after the last one.
    dry: bool,
}

impl Bus {
    /// A consumer ready to fetch from. It is created now if NATS is reachable, and otherwise by the first fetch that
    /// reaches NATS. Fails only if the consumer on the server differs from the one asked for.
    pub async fn consumer(&self, spec: ConsumerSpec) -> Result<Consumer, BusError> {
        let made = match self.is_connected() {
            true => self.ensure_consumer(&spec).await,
            false => Err(BusError::away(spec.name.as_str())),
        };
        match made {
            Err(fault) if !fault.is_transient() => Err(fault),
            made => Ok(Consumer::new(self.clone(), spec, made.is_ok())),
        }
    }
}

impl Consumer {
    pub(crate) fn new(bus: Bus, spec: ConsumerSpec, checked: bool) -> Consumer {
        Consumer { bus, spec, pull: Mutex::new(Pull { checked, proof: Some(Proof::default()), ..Pull::default() }) }
    }

    /// The specification of the consumer.
    pub fn spec(&self) -> &ConsumerSpec {
        &self.spec
    }

    /// Up to `max` messages, as soon as there is one; empty when `expires` has passed. An error means that the bus was
    /// away all that time, or that the consumer on the server differs from the one asked for; the next fetch tries
    /// again. One fetch runs at a time: a second waits for the first. Dropping the future loses nothing, but messages
    /// delivered by then wait here for the next fetch or [`Consumer::close`].
    pub async fn fetch(&self, max: usize, expires: Duration) -> Result<Vec<Delivery>, BusError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + expires;
        let Ok(mut pull) = timeout_at(deadline, self.pull.lock()).await else { return Ok(Vec::new()) };
        let mut tries = 0;
        loop {
            let Err(fault) = pull.turn(self, max, deadline).await else { return Ok(pull.hand_out(max)) };
            pull.reset(self, &fault);
            if !pull.ready.is_empty() {
                return Ok(pull.hand_out(max));
            }
            BusAway { detail: &format!("{}: {fault}", self.spec.name) }.emit();
            // Pause even when the time is up, so that a caller's loop does not spin.
            Bus::rest(if fault.is_transient() { tries } else { u32::MAX }).await;
            tries += 1;
            if !fault.is_transient() || Instant::now() >= deadline {
                return Err(fault);
            }
        }
    }

    /// Keeps messages that were delivered but not fetched from being redelivered to another process. For a caller that
    /// has no room to fetch: it calls this every [`crate::PROGRESS`]. Does nothing while a fetch is running.
    pub async fn hold(&self) {
        let Ok(mut pull) = self.pull.try_lock() else { return };
        // The next fetch finds a fault of the inbox.
        let _ = pull.take_in(self);
        for delivery in &pull.ready {
            delivery.in_progress().await;
        }
    }

    /// Stops pulling and gives back messages that were delivered but not fetched, so that other processes get them at
    /// once. For a graceful stop, when no fetch is running; a later fetch begins anew.
    pub async fn close(&self) {
        let mut pull = self.pull.lock().await;
        if let Some(mut inbox) = pull.inbox.take() {
            let _ = inbox.source.drain().await;
            while let Ok(Some(message)) = timeout(GRACE, inbox.source.next()).await {
                if let Ok(Arrived::Message) = inbox.arrived(&message) {
                    pull.receive(self, message);
                }
            }
        }
        let _ = timeout(Duration::from_secs(1), async {
            while let Some(done) = pull.letters.join_next().await {
                pull.ready.extend(done.ok().flatten());
            }
        })
        .await;
        if !pull.ready.is_empty() {
            // nats-server 2.9 forgets a message that was given back (until its ack wait) if it then finds only requests
            // whose subscribers are gone. Asking about the consumer makes the server remove those requests first.
            let _ = self.bus.consumer_state(&self.spec).await;
        }
        for delivery in pull.ready.drain(..) {
            delivery.nak(Duration::ZERO).await;
        }
        self.bus.flush(Duration::from_secs(1)).await;
    }
}

impl Pull {
    /// Works until a message is ready or the time is up. An error means: reset and try again.
    async fn turn(&mut self, consumer: &Consumer, max: usize, deadline: Instant) -> Result<(), BusError> {
        self.open(consumer, deadline).await?;
        let began = Instant::now();
        let mut first_at = None;
        loop {
            self.take_in(consumer)?;
            self.ask(consumer, max, deadline).await?;
            if let Some(proof) = self.proof.as_mut().filter(|proof| proof.is_due()) {
                if proof.look(&consumer.bus, &consumer.spec.place()).await? {
                    self.proof = None;
                }
                // A message that arrived in the meantime is proof as well.
                self.take_in(consumer)?;
            }
            let inbox = self.inbox.as_ref().ok_or_else(|| BusError::away("no inbox"))?;
            if !self.ready.is_empty() {
                let whole = consumer.spec.prefetch.is_some() || inbox.left == 0 || !inbox.bounded();
                let first_at = *first_at.get_or_insert_with(Instant::now);
                if whole || self.ready.len() >= max || first_at.elapsed() >= GATHER {
                    return Ok(());
                }
            }
            let until = match first_at {
                Some(at) => at + GATHER,
                // The server reports when a request has expired; without prefetch, wait for that.
                None if consumer.spec.prefetch.is_none() && inbox.left > 0 => deadline + GRACE,
                None => deadline,
            };
            let silent_at = inbox.heard.max(began) + inbox.patience();
            if Instant::now() >= until {
                // Nothing came, not even the expiry of the request: check the consumer again, without an alarm. A
                // server does not answer a request for messages of a consumer that is gone.
                if first_at.is_none() && consumer.spec.prefetch.is_none() && inbox.left > 0 {
                    self.leave(consumer);
                    self.checked = false;
                }
                return Ok(());
            }
            let look_at = self.proof.as_ref().map_or(until, Proof::due_at);
            self.wait(consumer, until.min(look_at), silent_at).await?;
        }
    }

    /// Waits for the next message, a break of the connection, or a time.
    async fn wait(&mut self, consumer: &Consumer, until: Instant, silent_at: Instant) -> Result<(), BusError> {
        let Some(inbox) = self.inbox.as_mut() else { return Err(BusError::away("no inbox")) };
        let (mut breaks, before) = (consumer.bus.breaks(), inbox.breaks);
        let message = tokio::select! {
            biased;
            message = inbox.source.next() => message,
            Some(done) = self.letters.join_next() => {
                self.ready.extend(done.ok().flatten());
                return Ok(());
            }
            _ = breaks.wait_for(|now| *now != before) => return Err(BusError::away("the connection broke")),
            () = sleep_until(until) => return Ok(()),
            () = sleep_until(silent_at) => {
                let what = format!("no heartbeat from {}", consumer.spec.name);
                return Err(BusError::Timeout { what, after: inbox.patience() });
            }
        };
        self.accept(consumer, message.ok_or_else(|| BusError::away("the subscription ended"))?)
    }

    /// Ensures the connection, the consumer and the inbox.
    async fn open(&mut self, consumer: &Consumer, deadline: Instant) -> Result<(), BusError> {
        let bus = &consumer.bus;
        bus.connected_by(deadline, &consumer.spec.name).await?;
        // If no process has pulled for long enough, the server may have removed the consumer.
        let unheard = self.inbox.as_ref().map(|inbox| inbox.heard.elapsed());
        self.checked &= unheard.zip(consumer.spec.idle_for).is_none_or(|(unheard, idle)| unheard < idle / 2);
        if !self.checked {
            let by = deadline.max(Instant::now() + Duration::from_secs(1));
            timeout_at(by, bus.ensure_consumer(&consumer.spec))
                .await
                .unwrap_or_else(|_| Err(BusError::away(consumer.spec.name.as_str())))?;
            self.checked = true;
            self.proof.get_or_insert_default();
        }
        if self.inbox.as_ref().is_some_and(|inbox| inbox.breaks != *bus.breaks().borrow()) {
            self.leave(consumer);
        }
        if self.inbox.is_none() {
            self.inbox = Some(Inbox::open(bus).await?);
        }
        Ok(())
    }

    /// Ensures that the server has a request from this consumer to answer.
    async fn ask(&mut self, consumer: &Consumer, max: usize, deadline: Instant) -> Result<(), BusError> {
        let Some(inbox) = self.inbox.as_mut() else { return Ok(()) };
        let ask = match consumer.spec.prefetch {
            Some(most) => {
                let here = inbox.left + self.ready.len();
                if here > most / 2 {
                    return Ok(());
                }
                Ask::Standing(most - here)
            }
            None if inbox.left > 0 || self.ready.len() >= max => return Ok(()),
            // One message came, and the stream holds more: one request brings as many as fit.
            None if !self.ready.is_empty() && !self.dry => Ask::AtOnce(max - self.ready.len()),
            None if !self.ready.is_empty() => return Ok(()),
            // Take the messages that are there, no more than fit. If there are none, wait for one message: further
            // requested ones could arrive when there is no room for them.
            None if !self.dry => Ask::AtOnce(max),
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left < Duration::from_millis(1) {
                    return Ok(());
                }
                Ask::One(left)
            }
        };
        inbox.ask(&consumer.bus, &consumer.spec.place(), ask).await
    }

    /// Takes all messages that have already arrived.
    fn take_in(&mut self, consumer: &Consumer) -> Result<(), BusError> {
        while let Some(done) = self.letters.try_join_next() {
            self.ready.extend(done.ok().flatten());
        }
        while let Some(Some(message)) = self.inbox.as_mut().and_then(|inbox| inbox.source.next().now_or_never()) {
            self.accept(consumer, message)?;
        }
        Ok(())
    }

    fn accept(&mut self, consumer: &Consumer, message: Message) -> Result<(), BusError> {
        let Some(inbox) = self.inbox.as_mut() else { return Ok(()) };
        match inbox.arrived(&message)? {
            Arrived::Message => self.receive(consumer, message),
            Arrived::Ended => self.dry = true,
            Arrived::Heartbeat => {}
        }
        Ok(())
    }

    fn receive(&mut self, consumer: &Consumer, message: Message) {
        self.proof = None;
        let ConsumerSpec { filter, stream, .. } = &consumer.spec;
        let Some((read, pending)) = Delivery::read(&consumer.bus, Some(filter), message) else { return };
        self.dry = pending == 0;
        let see_to = match read {
            Read::Whole(delivery) => return self.ready.push_back(delivery),
            _ if self.letters.len() >= LETTERS => return,
            Read::Partly(delivery, bad) => delivery.without(bad).boxed(),
            Read::Astray(receipt) => {
                let stream = *stream;
                async move {
                    receipt.pass_on(stream).await;
                    None
                }
                .boxed()
            }
            Read::Unreadable(receipt, reason) => async move {
                receipt.reject(&reason).await;
                None
            }
            .boxed(),
        };
        // If the task panics, the message is not acked and is redelivered.
        self.letters.spawn(async { caught("dead letter", see_to).await.ok().flatten() });
    }

    fn hand_out(&mut self, max: usize) -> Vec<Delivery> {
        let n = self.ready.len().min(max);
        self.ready.drain(..n).collect()
    }

    /// After a fault: keeps the messages that have arrived, forgets the open requests.
    fn reset(&mut self, consumer: &Consumer, fault: &BusError) {
        // A broken connection proves nothing about the consumer; any other fault might.
        self.checked &= matches!(fault, BusError::Away { .. });
        self.leave(consumer);
    }

    fn leave(&mut self, consumer: &Consumer) {
        let Some(mut inbox) = self.inbox.take() else { return };
        while let Some(Some(message)) = inbox.source.next().now_or_never() {
            if let Ok(Arrived::Message) = inbox.arrived(&message) {
                self.receive(consumer, message);
            }
        }
        self.dry = false;
    }
}
