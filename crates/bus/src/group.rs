//! Group commit for messages: items that arrive while a publish is in flight go out together in the next one. There is
//! no timer, so an idle system has no delay; the number of messages is what costs NATS time.
//!
//! Each caller gets the result of the message that carried its item. An item too large for any message fails alone. No
//! caller waits longer than the limit. While NATS is away at most `bound` items wait, and later callers wait for room
//! until the limit. An item is sent even if its caller has left. The caller decides what to do about a failed item (the
//! stream may hold it nevertheless).

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

/// The bytes for tag and length of one item inside its group.
const FRAME: usize = 8;

/// How a [`GroupPublisher`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct GroupSettings {
    /// How many items may wait before callers have to wait.
    pub bound: usize,
    /// How long an item is worth sending, from the call to the ack.
    pub limit: Duration,
    /// How many messages may be in flight. Beyond the first, only full messages go out: other items are better grouped.
    pub in_flight: usize,
    /// The most items in one message.
    pub max_items: usize,
}

impl GroupSettings {
    /// One message in flight, with up to 512 items, and the usual limit.
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
    /// Starts the publisher on a task. The task ends when the publisher was closed or its last clone is dropped, and
    /// all items are sent. `wrap` makes a message's body from items, `size` gives the bytes of an item in it.
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

    /// Takes no more items, for all clones: waiting items are still sent, then the task ends. Later callers get
    /// [`BusError::Stopped`].
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    /// Resolves when the message that carries the item was acked, or failed. Dropping the future does not withdraw the
    /// item.
    pub async fn publish(&self, item: T) -> Result<(), BusError> {
        let deadline = Instant::now() + self.shared.settings.limit;
        let answer = self.enqueue(item, deadline).await?;
        self.heard(answer, deadline).await
    }

    /// The same for many items, answered in order.
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
            Ok(Err(_)) => Err(BusError::away("the publishing task panicked")),
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

/// The task: takes waiting items, and keeps messages in flight.
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
            // A panic affects only this group: its callers get an error, because their answers are dropped.
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

/// How many of the waiting items fit one message, and whether the message is then full.
fn measure<T>(queue: &VecDeque<Waiting<T>>, most: usize, limit: usize) -> (usize, bool) {
    let (mut n, mut bytes) = (0, 0);
    for waiting in queue {
        // The first item always goes: the limit may have shrunk since the item was accepted, and then the publish
        // itself fails.
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

/// Sends one message, and answers all callers of its items.
async fn fly<T>(shared: Arc<Shared<T>>, group: Vec<Waiting<T>>) {
    let now = Instant::now();
    let (mut items, mut answers, mut until) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()), now);
    for waiting in group {
        if waiting.deadline <= now {
            // The caller has given up; the answer has no receiver.
            let _ = waiting.answer.send(Err(shared.late()));
            continue;
        }
        // Wait as long as the youngest item may wait: the other callers notice their own limits by themselves.
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
