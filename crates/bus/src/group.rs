//! Group commit for messages: what arrives while a publish is in flight goes out together in
//! the next one. No timer, so an idle system pays no delay; message count is what NATS costs.
//!
//! Promises: each caller hears what became of the message that carried its item; an item too
//! large for any message fails alone; nobody waits longer than the limit; while NATS is away
//! at most `bound` items wait, and whoever comes later waits for room until the limit. An item
//! whose caller has left is still sent. Leaves to others: what to do about an item that failed
//! (the stream may hold it all the same).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    future::BoxFuture,
    stream::{FuturesOrdered, FuturesUnordered},
};
use muster_telemetry::caught;
use muster_wire::Body;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};

use crate::{Bus, BusError, PUBLISH_LIMIT, Subject};

/// Tag and length of one item inside its group.
const FRAME: usize = 8;

/// How a [`GroupPublisher`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct GroupSettings {
    /// Items that may wait before callers have to.
    pub bound: usize,
    /// How long an item is worth sending, from the call to the ack.
    pub limit: Duration,
    /// Messages in flight. Beyond the first, only full ones go out: the rest is better grouped.
    pub in_flight: usize,
    /// Items in one message.
    pub max_items: usize,
}

impl GroupSettings {
    /// One message in flight, up to 512 items in it, the usual limit.
    pub fn bound(bound: usize) -> GroupSettings {
        GroupSettings { bound, limit: PUBLISH_LIMIT, in_flight: 1, max_items: 512 }
    }
}

/// Sends items of one kind to one subject, grouped. Clones share the groups.
pub struct GroupPublisher<T> {
    items: mpsc::Sender<Waiting<T>>,
    shared: Arc<Shared<T>>,
}

impl<T> Clone for GroupPublisher<T> {
    fn clone(&self) -> Self {
        GroupPublisher { items: self.items.clone(), shared: self.shared.clone() }
    }
}

struct Shared<T> {
    bus: Bus,
    subject: Subject,
    wrap: fn(Vec<T>) -> Body,
    size: fn(&T) -> usize,
    settings: GroupSettings,
    closed: watch::Sender<bool>,
}

struct Waiting<T> {
    item: T,
    size: usize,
    deadline: Instant,
    answer: oneshot::Sender<Result<(), BusError>>,
}

impl<T: Send + 'static> GroupPublisher<T> {
    /// Starts it on a task that ends when it was closed or its last clone is dropped, and all is
    /// sent. `wrap` makes a message's body of items, `size` says how many bytes an item takes in it.
    pub fn new(
        bus: Bus,
        subject: Subject,
        spawn: &dyn Fn(BoxFuture<'static, ()>),
        wrap: fn(Vec<T>) -> Body,
        size: fn(&T) -> usize,
        bound: usize,
    ) -> GroupPublisher<T> {
        GroupPublisher::with(bus, subject, spawn, wrap, size, GroupSettings::bound(bound))
    }

    /// [`GroupPublisher::new`] with everything set.
    pub fn with(
        bus: Bus,
        subject: Subject,
        spawn: &dyn Fn(BoxFuture<'static, ()>),
        wrap: fn(Vec<T>) -> Body,
        size: fn(&T) -> usize,
        settings: GroupSettings,
    ) -> GroupPublisher<T> {
        let (items, waiting) = mpsc::channel(settings.bound.max(1));
        let shared = Arc::new(Shared { bus, subject, wrap, size, settings, closed: watch::Sender::new(false) });
        spawn(Box::pin(carry(shared.clone(), waiting)));
        GroupPublisher { items, shared }
    }

    /// Takes nothing more, for all clones: what waits is still sent, then the task ends. Whoever
    /// comes later hears [`BusError::Stopped`].
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    /// Resolves when the message that carries the item was acked, or failed. Dropping the
    /// future takes nothing back.
    pub async fn publish(&self, item: T) -> Result<(), BusError> {
        let deadline = Instant::now() + self.shared.settings.limit;
        let answer = self.enqueue(item, deadline).await?;
        self.heard(answer, deadline).await
    }

    /// The same for many, answered in order.
    pub async fn publish_all(&self, items: Vec<T>) -> Vec<Result<(), BusError>> {
        let deadline = Instant::now() + self.shared.settings.limit;
        let mut answers = FuturesOrdered::new();
        for item in items {
            let queued = self.enqueue(item, deadline).await;
            answers.push_back(async move {
                match queued {
                    Ok(answer) => self.heard(answer, deadline).await,
                    Err(fault) => Err(fault),
                }
            });
        }
        answers.collect().await
    }

    async fn enqueue(&self, item: T, deadline: Instant) -> Result<oneshot::Receiver<Result<(), BusError>>, BusError> {
        let (size, limit) = ((self.shared.size)(&item) + FRAME, self.shared.bus.max_message());
        if size > limit {
            return Err(BusError::TooLarge { size, limit });
        }
        let (answer, heard) = oneshot::channel();
        let waiting = Waiting { item, size, deadline, answer };
        match timeout_at(deadline, self.items.send(waiting)).await {
            Ok(Ok(())) => Ok(heard),
            Ok(Err(_)) => Err(BusError::Stopped),
            Err(_) => Err(self.late()),
        }
    }

    async fn heard(&self, answer: oneshot::Receiver<Result<(), BusError>>, deadline: Instant) -> Result<(), BusError> {
        match timeout_at(deadline, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) if self.items.is_closed() => Err(BusError::Stopped),
            Ok(Err(_)) => Err(BusError::away("whoever published it panicked")),
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> BusError {
        self.shared.late()
    }
}

impl<T> Shared<T> {
    fn late(&self) -> BusError {
        BusError::Timeout { what: format!("publish to {}", self.subject), after: self.settings.limit }
    }
}

/// The task: takes what waits, and keeps messages in flight.
async fn carry<T: Send + 'static>(shared: Arc<Shared<T>>, mut items: mpsc::Receiver<Waiting<T>>) {
    let mut queue: VecDeque<Waiting<T>> = VecDeque::new();
    let mut flights = FuturesUnordered::new();
    let most = shared.settings.max_items.max(1);
    let mut closed = shared.closed.subscribe();
    let (mut open, mut taking) = (true, true);
    loop {
        while queue.len() < most
            && let Ok(waiting) = items.try_recv()
        {
            queue.push_back(waiting);
        }
        while !queue.is_empty() {
            let (group, full) = measure(&queue, most, shared.bus.max_message());
            let free = flights.is_empty() || (full && flights.len() < shared.settings.in_flight);
            if !free {
                break;
            }
            // A panic costs this group alone: whoever waits for it hears that nobody will answer.
            flights.push(caught("group publish", fly(shared.clone(), queue.drain(..group).collect())));
        }
        if !open && queue.is_empty() && flights.is_empty() {
            return;
        }
        tokio::select! {
            next = items.recv(), if open && queue.len() < most => match next {
                Some(waiting) => queue.push_back(waiting),
                None => open = false,
            },
            Some(_) = flights.next(), if !flights.is_empty() => {}
            _ = closed.wait_for(|closed| *closed), if taking => {
                taking = false;
                items.close();
            }
        }
    }
}

/// How many of the waiting fit one message, and whether it is then full.
fn measure<T>(queue: &VecDeque<Waiting<T>>, most: usize, limit: usize) -> (usize, bool) {
    let (mut n, mut bytes) = (0, 0);
    for waiting in queue {
        // The first always goes: the limit may have shrunk since it was let in, and then the
        // publish itself says so.
        if n > 0 && bytes + waiting.size > limit {
            return (n, true);
        }
        bytes += waiting.size;
        n += 1;
        if n == most {
            return (n, true);
        }
    }
    (n, false)
}

/// One message, from its items to everybody's answer.
async fn fly<T>(shared: Arc<Shared<T>>, group: Vec<Waiting<T>>) {
    let now = Instant::now();
    let (mut items, mut answers, mut until) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()), now);
    for waiting in group {
        if waiting.deadline <= now {
            // Its caller has given up; nobody is left to hear the answer.
            let _ = waiting.answer.send(Err(shared.late()));
            continue;
        }
        // As long as the youngest may wait: the others hear of their own limit by themselves.
        until = until.max(waiting.deadline);
        items.push(waiting.item);
        answers.push(waiting.answer);
    }
    if items.is_empty() {
        return;
    }
    let body = (shared.wrap)(items);
    let outcome = shared.bus.publish_within(&shared.subject, None, None, body, until - now).await;
    for answer in answers {
        let _ = answer.send(outcome.clone());
    }
}
