//! Pulls groups of work from a stream and completes them.
//!
//! Knows: which delivery each item of a batch came with. Promises: waiting groups are handled together, in a bounded
//! number of batches at once. A delivery is acked only after everything in it is done. A delivery with a failure comes
//! again and is then handled item by item: only the failed items are published again and the rest is done, so a shard
//! that is down never blocks the others. A delivery that takes long is kept from being redelivered. An unfit replica
//! gives back all its deliveries and takes none. Leaves to others: the meaning of the items ([`Work`]).

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

/// Most deliveries fetched at once.
const FETCH: usize = 32;
/// Most items handled as one batch, unless one delivery alone has more.
const BATCH: usize = 512;
/// Most batches handled at once, per consumer.
const BATCHES: usize = 8;
/// How long a pull waits for work.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the first redelivery of a delivery with a failure: the fault may be over by then. Later pauses double,
/// up to the longest.
const COME_AGAIN: Duration = Duration::from_millis(500);
const COME_AGAIN_AT_LAST: Duration = Duration::from_secs(10);
/// A group of which no item could be done is redelivered as it is up to this many deliveries.
const STAYS_FOR: u64 = 4;
/// Most items of a redelivered group that are handled at one time, each in a batch of its own.
const SINGLES: usize = 32;

/// The kind of work that a consumer handles.
pub(crate) trait Work: Send + Sync + 'static {
    /// One job's part of a group.
    type Item: Clone + Send + Sync + 'static;

    /// Name of the task, for logs.
    const NAME: &'static str;

    /// The subject of the work; failed items are published there again.
    fn subject() -> Subject;

    /// Takes a group apart; none if the body is of another kind.
    fn open(body: Body) -> Option<Vec<Self::Item>>;

    /// Puts a group together.
    fn close(items: Vec<Self::Item>) -> Body;

    /// Handles these items completely. `again`: they were delivered before. Returns the places of items that failed and
    /// must be delivered again.
    fn handle(context: &Context, items: Vec<Self::Item>, again: bool) -> impl Future<Output = Vec<usize>> + Send;
}

/// Takes work until stopped. Batches that have begun continue as tasks in flight; deliveries that have not begun are
/// given back.
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
    // The consumer exists now; the first fetch may wait long for its first message.
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
            // All turns are taken: keep the deliveries that have arrived meanwhile, unless this replica is unfit.
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
            // A batch that waits for its turn is kept from being redelivered, like one that is handled.
            context
                .in_flight
                .spawn(W::NAME, async move { see_through::<W>(&context_of_batch, batch, turn, &turns).await });
        }
    }
    consumer.close().await;
    Ok(())
}

/// Whether every consumer has received an answer from its stream.
pub(crate) struct Consumers {
    part: Part,
    silent: Mutex<BTreeMap<&'static str, String>>,
}

impl Consumers {
    /// All consumers begin as not ready.
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
    /// The body is of another kind than this subject carries.
    foreign: bool,
}

/// Joins first deliveries into batches, and keeps each redelivery separate.
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
            delivery.receipt.reject("wrong kind of message for this subject").await;
        }
        return;
    }
    let given_back = AtomicBool::new(false);
    let handling = async {
        // The semaphore is never closed.
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

/// Keeps deliveries that are being handled from being redelivered, and gives them back when this replica becomes unfit:
/// the handling continues here, and a repeat does no harm. Never returns.
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

/// Handles a redelivered group, each item separately, so that a bad item does not affect the others, and only failed
/// items are published again. If no item could be done, the group itself is redelivered: then the store does not
/// answer, and no item blocks another one. If that continues while other Redis nodes answer, the items are published
/// again at the end of the stream nevertheless, because the lease guard judges all workers by how far the stream has
/// been handled.
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

/// Pause before the nth delivery.
fn pause_before(nth: u64) -> Duration {
    let doubled = u32::try_from(nth.saturating_sub(2).min(8)).unwrap_or(8);
    (COME_AGAIN * 2_u32.pow(doubled)).min(COME_AGAIN_AT_LAST)
}

/// The places that failed; none if the handler panicked.
async fn guarded<W: Work>(context: &Context, items: Vec<W::Item>, again: bool) -> Option<Vec<usize>> {
    let handled = AssertUnwindSafe(W::handle(context, items, again)).catch_unwind().await;
    handled.map_err(|_| TaskPanicked { task: W::NAME, detail: "see the log" }.emit()).ok()
}

/// Publishes an item that cannot be read as a dead letter; the rest of its group continues. False if the publish
/// failed: then the item must be delivered again.
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
