//! Pulls groups of work from a stream and sees them through.
//!
//! Knows: which delivery each item of a batch came with. Promises: groups that wait are handled
//! together, a bounded number of batches at once; a delivery is acked only after everything in it
//! is done; one with a failure comes again and is then handled item by item, only what failed is
//! published anew, and its neighbours are done with, so a shard that is down never holds up the
//! others; a delivery that takes long is kept from being delivered elsewhere; a replica that is not fit
//! gives back all that it holds and takes nothing. Leaves to others: what the items mean ([`Work`]).

use std::{
    collections::BTreeMap,
    future::Future,
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use muster_bus::{ConsumerSpec, Delivery, PROGRESS, Subject, subjects};
use muster_chassis::Part;
use muster_domain::Time;
use muster_telemetry::{
    Emit,
    events::{TaskPanicked, Undecodable},
};
use muster_wire::{Body, encode, seal, v1::DeadLetter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Deliveries taken at once.
const FETCH: usize = 32;
/// Items handled as one batch, unless one delivery alone has more.
const BATCH: usize = 512;
/// Batches under way at once, per consumer.
const BATCHES: usize = 8;
/// How long a pull waits for work.
const PATIENCE: Duration = Duration::from_secs(5);
/// When a delivery with a failure comes again first: the fault may be over by then. Later ones wait
/// longer, up to the last.
const COME_AGAIN: Duration = Duration::from_millis(500);
const COME_AGAIN_AT_LAST: Duration = Duration::from_secs(10);
/// A group of which nothing could be done keeps its place for so many deliveries.
const STAYS_FOR: u64 = 4;
/// Items of a repeated group that are handled at one time, each for itself.
const SINGLES: usize = 32;

/// What a consumer carries.
pub(crate) trait Work: Send + Sync + 'static {
    /// One job's part of a group.
    type Item: Clone + Send + Sync + 'static;

    /// For tasks and logs.
    const NAME: &'static str;

    /// Where it comes from, and where what failed goes again.
    fn subject() -> Subject;

    /// Takes a group apart; none if this is something else.
    fn open(body: Body) -> Option<Vec<Self::Item>>;

    /// Puts a group together.
    fn close(items: Vec<Self::Item>) -> Body;

    /// Does all that these items entail. `again`: they were delivered before. Returns the places
    /// of those that could not be done and must come again.
    fn handle(context: &Context, items: Vec<Self::Item>, again: bool) -> impl Future<Output = Vec<usize>> + Send;
}

/// Takes work until stopped. What was begun goes on among the tasks in flight; what was delivered
/// and not begun is given back.
pub(crate) async fn run<W: Work>(
    context: &Arc<Context>,
    ready: &Consumers,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let opened = async {
        context.bus().connected().await;
        context.bus().consumer(ConsumerSpec::scheduler(W::subject())).await
    };
    let consumer = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        consumer = opened => consumer?,
    };
    // It was made just now; the first fetch may wait long for its first message.
    ready.tell(W::NAME, Ok(()));
    let turns = Arc::new(Semaphore::new(BATCHES));
    loop {
        if !context.fitness.is_fit() {
            consumer.close().await;
            tokio::select! {
                () = context.fitness.fit() => {}
                () = stop.cancelled() => break,
            }
        }
        let turn = tokio::select! {
            turn = turns.clone().acquire_owned() => turn?,
            // All turns are taken: what was delivered meanwhile is kept, unless this replica is not fit.
            () = tokio::time::sleep(PROGRESS) => {
                consumer.hold().await;
                continue;
            }
            () = context.fitness.unfit() => continue,
            () = stop.cancelled() => break,
        };
        let fetched = tokio::select! {
            fetched = consumer.fetch(FETCH, PATIENCE) => fetched,
            () = context.fitness.unfit() => continue,
            () = stop.cancelled() => break,
        };
        let deliveries = match fetched {
            Ok(deliveries) => deliveries,
            Err(fault) => {
                ready.tell(W::NAME, Err(fault.to_string()));
                continue;
            }
        };
        ready.tell(W::NAME, Ok(()));
        let mut turn = Some(turn);
        for batch in batches::<W>(deliveries) {
            let (context_of_batch, turn, turns) = (context.clone(), turn.take(), turns.clone());
            // A batch that waits for its turn is kept from being delivered elsewhere, as one that is handled.
            context
                .in_flight
                .spawn(W::NAME, async move { see_through::<W>(&context_of_batch, batch, turn, &turns).await });
        }
    }
    consumer.close().await;
    Ok(())
}

/// Whether every consumer has heard from its stream.
pub(crate) struct Consumers {
    part: Part,
    silent: Mutex<BTreeMap<&'static str, String>>,
}

impl Consumers {
    /// None of these has been heard of yet.
    pub(crate) fn new(part: Part, names: &[&'static str]) -> Consumers {
        let silent = names.iter().map(|name| (*name, "starting".to_owned())).collect();
        Consumers { part, silent: Mutex::new(silent) }
    }

    fn tell(&self, name: &'static str, heard: Result<(), String>) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match heard {
            Ok(()) if silent.remove(name).is_none() => return,
            Ok(()) => {}
            Err(detail) => drop(silent.insert(name, detail)),
        }
        match silent.iter().next() {
            None => self.part.ready(),
            Some((name, detail)) => self.part.not_ready(format!("{name}: {detail}")),
        }
    }
}

/// Deliveries that are handled together.
struct Batch<W: Work> {
    deliveries: Vec<(Delivery, Range<usize>)>,
    items: Vec<W::Item>,
    again: bool,
    /// Carries something else than this subject does.
    foreign: bool,
}

/// Puts first deliveries together, and keeps each later one apart.
fn batches<W: Work>(deliveries: Vec<Delivery>) -> Vec<Batch<W>> {
    let mut batches: Vec<Batch<W>> = Vec::new();
    for mut delivery in deliveries {
        let again = delivery.delivered > 1;
        let body = std::mem::replace(&mut delivery.body, Body::Submit(Default::default()));
        let Some(items) = W::open(body) else {
            batches.push(Batch { deliveries: vec![(delivery, 0..0)], items: Vec::new(), again, foreign: true });
            continue;
        };
        match batches.last_mut() {
            Some(last) if !again && !last.again && !last.foreign && last.items.len() + items.len() <= BATCH => {
                let place = last.items.len()..last.items.len() + items.len();
                last.items.extend(items);
                last.deliveries.push((delivery, place));
            }
            _ => batches.push(Batch { deliveries: vec![(delivery, 0..items.len())], items, again, foreign: false }),
        }
    }
    batches
}

async fn see_through<W: Work>(
    context: &Context,
    batch: Batch<W>,
    turn: Option<OwnedSemaphorePermit>,
    turns: &Arc<Semaphore>,
) {
    let Batch { deliveries, items, again, foreign } = batch;
    if foreign {
        for (delivery, _) in &deliveries {
            delivery.receipt.reject("another kind of message than this subject carries").await;
        }
        return;
    }
    let given_back = AtomicBool::new(false);
    let handling = async {
        // It is never closed.
        let _turn = match turn {
            Some(turn) => Some(turn),
            None => turns.clone().acquire_owned().await.ok(),
        };
        if again {
            for (delivery, _) in &deliveries {
                one_by_one::<W>(context, delivery, &items, &given_back).await;
            }
            return;
        }
        let failed = guarded::<W>(context, items, false).await;
        for (delivery, place) in &deliveries {
            let whole = failed.as_ref().is_some_and(|failed| !failed.iter().any(|i| place.contains(i)));
            if whole {
                delivery.ack().await;
            } else if !given_back.load(Ordering::Relaxed) {
                delivery.nak(pause_before(2)).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = handling => {}
        () = keep(context, &deliveries, &given_back) => {}
    }
}

/// Keeps deliveries that are being handled from being delivered elsewhere, and gives them back once this replica is
/// not fit: what was begun here goes on, and is harmless to repeat. Never returns.
async fn keep(context: &Context, deliveries: &[(Delivery, Range<usize>)], given_back: &AtomicBool) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(PROGRESS) => {
                for (delivery, _) in deliveries {
                    delivery.in_progress().await;
                }
            }
            () = context.fitness.unfit() => break,
        }
    }
    given_back.store(true, Ordering::Relaxed);
    for (delivery, _) in deliveries {
        delivery.nak(Duration::ZERO).await;
    }
    std::future::pending().await
}

/// A group that came before: each item for itself, so that a bad one harms nobody else, and only
/// what failed is published again. Where nothing could be done the group itself comes again: then
/// it is the store that is away, and nobody is held up by a neighbour. If that goes on while other
/// nodes answer, it goes to the end of the stream all the same: how far a stream has been handled is
/// what everybody's silence is judged by.
async fn one_by_one<W: Work>(context: &Context, delivery: &Delivery, items: &[W::Item], given_back: &AtomicBool) {
    let mut failed = Vec::new();
    for chunk in items.chunks(SINGLES) {
        let handled = join_all(chunk.iter().map(|item| guarded::<W>(context, vec![item.clone()], true))).await;
        for (item, places) in chunk.iter().zip(handled) {
            if places.is_none_or(|places| !places.is_empty()) {
                failed.push(item.clone());
            }
        }
    }
    let none_done = failed.len() == items.len() && !items.is_empty();
    let stays = none_done && (delivery.delivered < STAYS_FOR || !context.lease_guard.some_node_answers());
    let done = failed.is_empty()
        || (!stays && context.bus().publish(&W::subject(), None, None, W::close(failed)).await.is_ok());
    if done {
        delivery.ack().await;
    } else if !given_back.load(Ordering::Relaxed) {
        delivery.nak(pause_before(delivery.delivered + 1)).await;
    }
}

/// How long before a delivery comes for the nth time.
fn pause_before(nth: u64) -> Duration {
    let doubled = u32::try_from(nth.saturating_sub(2).min(8)).unwrap_or(8);
    (COME_AGAIN * 2_u32.pow(doubled)).min(COME_AGAIN_AT_LAST)
}

/// The places that failed; none if the handling itself broke.
async fn guarded<W: Work>(context: &Context, items: Vec<W::Item>, again: bool) -> Option<Vec<usize>> {
    let handled = AssertUnwindSafe(W::handle(context, items, again)).catch_unwind().await;
    handled.map_err(|_| TaskPanicked { task: W::NAME, detail: "see the log" }.emit()).ok()
}

/// Keeps an item that cannot be read as a dead letter; the rest of its group goes on. False if
/// it could not be kept: then it must come again.
pub(crate) async fn bury<W: Work>(context: &Context, item: W::Item, reason: &str) -> bool {
    let subject = W::subject();
    Undecodable { subject: subject.as_str(), detail: reason }.emit();
    let original: Bytes = encode(&seal(context.bus().instance(), None, Time::NONE, W::close(vec![item])));
    let letter = DeadLetter { subject: subject.to_string(), reason: reason.to_owned(), original };
    context.bus().publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_comes_less_and_less_often() {
        let pauses: Vec<_> = (2..=9).map(pause_before).collect();
        assert_eq!(pauses[0], COME_AGAIN);
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&COME_AGAIN_AT_LAST));
        assert_eq!(pause_before(u64::MAX), COME_AGAIN_AT_LAST);
    }
}
