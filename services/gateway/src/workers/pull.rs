//! Pullers: one per tenant and line of a topic. A puller asks the bus for as many offers as waiting calls want.
//!
//! Promises: a puller asks for no more offers than are wanted, as far as the size of messages is known. An offer that
//! no call waits for goes back at once. A delivery is acked when each of its offers was started or is gone, and given
//! back otherwise, but never before all of its offers are decided. A puller without waiting calls ends after a while.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_bus::{Bus, Consumer, ConsumerSpec, Delivery, PullSize, Receipt};
use muster_chassis::Tasks;
use muster_domain::{Event, JobId, Line, ProblemCode, Tenant, job::transition};
use muster_flow::Flow;
use muster_store::{Fields, Store};
use muster_wire::{Body, job_id, v1};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;

/// How long one request to the bus stays open.
const STANDS_FOR: Duration = Duration::from_secs(5);
/// A puller that no call has wanted for this long ends.
const IDLE: Duration = Duration::from_secs(30);
/// The most offers that are asked for at once.
const MOST_AT_ONCE: usize = 256;
/// The most pullers in one gateway: each is a consumer on the bus.
const MOST_PULLERS: usize = 4096;

/// One offer, until it is decided. If it is dropped undecided, it goes back to the bus.
pub(super) struct Offered {
    pub(super) offer: v1::Offer,
    ticket: Arc<Ticket>,
    decided: bool,
}

impl Offered {
    /// Marks the offer as decided: the job was started, or is gone, so no other worker needs the offer.
    pub(super) fn decided(mut self) {
        self.decided = true;
    }

    /// Gives the offer back, to be delivered again after `delay`.
    pub(super) fn later(mut self, delay: Duration) {
        self.decided = true;
        self.ticket.give_back(delay);
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if !self.decided {
            self.ticket.give_back(Duration::ZERO);
        }
    }
}

/// A delivery whose offers are being decided. The last offer that is dropped acks it or gives it back.
struct Ticket {
    receipt: Option<Receipt>,
    back: Mutex<Option<Duration>>,
    answers: mpsc::UnboundedSender<(Receipt, Option<Duration>)>,
}

impl Ticket {
    fn give_back(&self, delay: Duration) {
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        *back = Some(back.map_or(delay, |other| other.max(delay)));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let back = *self.back.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(receipt) = self.receipt.take() {
            // If the task that answers has ended, the bus delivers the message again after its ack wait.
            let _ = self.answers.send((receipt, back));
        }
    }
}

/// The wish of one call for offers of one line.
pub(super) struct Want {
    pub(super) n: usize,
    pub(super) until: Instant,
    pub(super) give: mpsc::UnboundedSender<Vec<Offered>>,
}

impl Want {
    fn lives(&self, now: Instant) -> bool {
        self.n > 0 && self.until > now && !self.give.is_closed()
    }
}

/// The pullers of this gateway, by line.
pub(super) struct Pullers {
    bus: Bus,
    store: Store,
    tasks: Tasks,
    wants: Mutex<HashMap<(Tenant, Line), mpsc::UnboundedSender<Want>>>,
    answers: mpsc::UnboundedSender<(Receipt, Option<Duration>)>,
}

impl Pullers {
    /// `tasks` runs the pullers; `answering` outlives the calls that still decide their offers.
    pub(super) fn start(flow: &Flow, tasks: &Tasks, answering: &Tasks) -> Pullers {
        let (answers, mut waiting) = mpsc::unbounded_channel::<(Receipt, Option<Duration>)>();
        answering.spawn("answer for offers", {
            let stop = answering.stopping();
            async move {
                loop {
                    let next = tokio::select! {
                        biased;
                        next = waiting.recv() => next,
                        () = stop.cancelled() => waiting.try_recv().ok(),
                    };
                    match next {
                        Some((receipt, None)) => receipt.ack().await,
                        Some((receipt, Some(delay))) => receipt.nak(delay).await,
                        None => return,
                    }
                }
            }
        });
        let (bus, store) = (flow.bus.clone(), flow.store.clone());
        Pullers { bus, store, tasks: tasks.clone(), wants: Mutex::default(), answers }
    }

    /// Asks for offers of a line. Starts its puller if there is none.
    pub(super) fn want(&self, tenant: &Tenant, line: Line, mut want: Want) -> Result<(), Problem> {
        let mut wants = self.wants.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = ConsumerSpec::offers(tenant, &line);
        let key = (tenant.clone(), line);
        if let Some(puller) = wants.get(&key) {
            match puller.send(want) {
                Ok(()) => return Ok(()),
                // The puller has just ended; a new one takes over.
                Err(unsent) => want = unsent.0,
            }
        }
        if wants.len() >= MOST_PULLERS {
            wants.retain(|_, puller| !puller.is_closed());
            if wants.len() >= MOST_PULLERS {
                return Err(Problem::new(ProblemCode::Overloaded, "workers wait for too many topics on this gateway"));
            }
        }
        let (puller, wanted) = mpsc::unbounded_channel();
        // This cannot fail: the receiver exists.
        let _ = puller.send(want);
        wants.insert(key, puller);
        let (bus, store) = (self.bus.clone(), self.store.clone());
        let (answers, waiting, pull_size) = (self.answers.clone(), VecDeque::new(), PullSize::bold());
        let puller = Puller { bus, store, answers, wanted, waiting, pull_size };
        self.tasks.spawn("pull offers", puller.run(spec, self.tasks.stopping()));
        Ok(())
    }
}

struct Puller {
    bus: Bus,
    store: Store,
    answers: mpsc::UnboundedSender<(Receipt, Option<Duration>)>,
    wanted: mpsc::UnboundedReceiver<Want>,
    waiting: VecDeque<Want>,
    pull_size: PullSize,
}

impl Puller {
    /// Ends when no call has wanted offers for a while, or at the stop. Waiting calls then see their channel closed.
    async fn run(mut self, spec: ConsumerSpec, stop: CancellationToken) {
        let Ok(consumer) = self.bus.consumer(spec).await else { return };
        loop {
            let fetched = tokio::select! {
                () = stop.cancelled() => break,
                fetched = self.fetch(&consumer) => fetched,
            };
            let Some(deliveries) = fetched else { break };
            for delivery in deliveries {
                self.hand_out(delivery).await;
            }
        }
        self.wanted.close();
        // Gives back the messages that were delivered but not fetched.
        consumer.close().await;
    }

    /// Fetches the offers that are wanted, as far as there are any; `None` when no call wants offers. Dropping the
    /// future loses nothing.
    async fn fetch(&mut self, consumer: &Consumer) -> Option<Vec<Delivery>> {
        let (n, expires) = self.demand().await?;
        // After an error this turn yields nothing, and the next turn asks again. The failed fetch has taken its time
        // already.
        let deliveries = consumer.fetch(self.pull_size.messages(n), expires).await.unwrap_or_default();
        let offers = |delivery: &Delivery| match &delivery.body {
            Body::Offer(group) => group.items.len(),
            _ => 0,
        };
        self.pull_size.saw(deliveries.len(), deliveries.iter().map(offers).sum());
        Some(deliveries)
    }

    /// How many offers are wanted now, and for how long; `None` when no call has come for a while.
    async fn demand(&mut self) -> Option<(usize, Duration)> {
        loop {
            while let Ok(want) = self.wanted.try_recv() {
                self.waiting.push_back(want);
            }
            let now = Instant::now();
            self.waiting.retain(|want| want.lives(now));
            if let Some(last) = self.waiting.iter().map(|want| want.until).max() {
                let n = self.waiting.iter().map(|want| want.n).sum::<usize>().min(MOST_AT_ONCE);
                return Some((n, (last - now).min(STANDS_FOR)));
            }
            let next = tokio::time::timeout(IDLE, self.wanted.recv()).await.ok().flatten()?;
            self.waiting.push_back(next);
        }
    }

    /// Gives the offers of a delivery to the waiting calls. Offers that are left over go back with the delivery.
    async fn hand_out(&mut self, delivery: Delivery) {
        while let Ok(want) = self.wanted.try_recv() {
            self.waiting.push_back(want);
        }
        let Body::Offer(group) = delivery.body else {
            delivery.receipt.reject("not an offer").await;
            return;
        };
        let answers = self.answers.clone();
        let ticket = Arc::new(Ticket { receipt: Some(delivery.receipt), back: Mutex::default(), answers });
        let shared = group.items.len() > 1;
        let offered = group.items.into_iter().map(|offer| Offered { offer, ticket: ticket.clone(), decided: false });
        let mut offered: Vec<Offered> = offered.collect();
        drop(ticket);
        if shared && delivery.delivered > 1 {
            offered = self.still_offered(offered).await;
        }
        share(offered, &mut self.waiting, Instant::now());
    }

    /// Removes offers whose jobs were started meanwhile. A shared delivery that went back still contains them, and a
    /// worker that takes one offer at a time would otherwise get the same first offer for ever.
    async fn still_offered(&self, offered: Vec<Offered>) -> Vec<Offered> {
        let ids: Vec<JobId> = offered.iter().filter_map(|o| job_id(&o.offer.job_id).ok()).collect();
        if ids.len() != offered.len() {
            return offered;
        }
        let records = self.store.read(&ids, Fields::NONE).await;
        let mut open = Vec::with_capacity(offered.len());
        for (one, record) in offered.into_iter().zip(records) {
            match record {
                Ok(Some(record)) if transition(record.head.state(), Event::Start).is_none() => one.decided(),
                Ok(Some(record)) if record.head.version != one.offer.version => one.decided(),
                // There is no record yet, or Redis did not answer: the start will show it.
                _ => open.push(one),
            }
        }
        open
    }
}

/// Serves the calls in the order of their arrival. Offers that no call takes are dropped, and so go back.
fn share(mut offered: Vec<Offered>, waiting: &mut VecDeque<Want>, now: Instant) {
    while !offered.is_empty() {
        let Some(want) = waiting.front_mut() else { return };
        if !want.lives(now) {
            waiting.pop_front();
            continue;
        }
        let n = want.n.min(offered.len());
        let rest = offered.split_off(n);
        match want.give.send(offered) {
            Ok(()) => {
                want.n -= n;
                offered = rest;
            }
            Err(unsent) => {
                offered = unsent.0;
                offered.extend(rest);
                waiting.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given = mpsc::UnboundedReceiver<Vec<Offered>>;

    fn offers(n: u32) -> (Vec<Offered>, Arc<Ticket>) {
        let ticket = Arc::new(Ticket { receipt: None, back: Mutex::default(), answers: mpsc::unbounded_channel().0 });
        let offer = |version| v1::Offer { version, ..Default::default() };
        let list = (0..n).map(|v| Offered { offer: offer(v), ticket: ticket.clone(), decided: false }).collect();
        (list, ticket)
    }

    fn want(n: usize, lasts: Duration) -> (Want, Given) {
        let (give, given) = mpsc::unbounded_channel();
        (Want { n, until: Instant::now() + lasts, give }, given)
    }

    fn took(given: &mut Given) -> Vec<u32> {
        let mut all = Vec::new();
        while let Ok(list) = given.try_recv() {
            for offered in list {
                all.push(offered.offer.version);
                offered.decided();
            }
        }
        all
    }

    #[tokio::test]
    async fn offers_go_to_whoever_came_first() {
        let (first, mut a) = want(2, IDLE);
        let (second, mut b) = want(5, IDLE);
        let mut waiting = VecDeque::from([first, second]);
        let (list, ticket) = offers(4);
        share(list, &mut waiting, Instant::now());
        assert_eq!((took(&mut a), took(&mut b)), (vec![0, 1], vec![2, 3]));
        assert_eq!(*ticket.back.lock().unwrap(), None, "all decided: acked");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_goes_back_at_once() {
        let (gone, a) = want(1, IDLE);
        let (late, mut b) = want(1, Duration::ZERO);
        let (here, mut c) = want(1, IDLE);
        drop(a);
        let mut waiting = VecDeque::from([gone, late, here]);
        let (list, ticket) = offers(3);
        share(list, &mut waiting, Instant::now());
        assert_eq!((took(&mut b), took(&mut c)), (vec![], vec![0]));
        assert_eq!(*ticket.back.lock().unwrap(), Some(Duration::ZERO));
        assert!(waiting.iter().all(|want| want.n == 0));
    }

    #[tokio::test]
    async fn a_call_that_ends_with_offers_in_hand_gives_them_back() {
        let (wish, given) = want(3, IDLE);
        let mut waiting = VecDeque::from([wish]);
        let (list, ticket) = offers(3);
        share(list, &mut waiting, Instant::now());
        assert_eq!(*ticket.back.lock().unwrap(), None);
        drop(given);
        assert_eq!(*ticket.back.lock().unwrap(), Some(Duration::ZERO));
    }

    #[test]
    fn one_offer_that_must_wait_holds_its_delivery_back_longest() {
        let (mut list, ticket) = offers(3);
        list.pop().unwrap().later(Duration::from_secs(1));
        drop(list.pop());
        list.pop().unwrap().decided();
        assert_eq!(*ticket.back.lock().unwrap(), Some(Duration::from_secs(1)));
    }
}
