//! Offers between their delivery and the answer to their start.
//!
//! This module knows which offers came in which delivery, which have a slot, which were asked for and with which
//! `start_id`. An ask that went out once is repeated with the same `start_id` until it is answered, whatever happens to
//! its delivery. An offer that is redelivered in the meantime joins the open ask. A delivery is acked when each of its
//! offers was started or is gone, and given back when one of them got no slot in time. This module does not use the
//! bus: it only decides what to send.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use muster_bus::PROGRESS;
use muster_domain::{JobId, StartId};
use muster_wire::v1;
use tokio::time::Instant;

/// How long an offer waits for a slot before its delivery is given back.
pub(super) const SLOT_WAIT: Duration = Duration::from_millis(200);
/// How long the first start request waits for its answer.
const START_WAIT: Duration = Duration::from_secs(1);
/// How many start requests may be in flight at once.
pub(super) const MAX_REQUESTS: usize = 2;
/// The most asks in one request.
const MAX_ASKS: usize = 512;
/// How long a job without a record is left alone.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);
const FIRST_REPEAT: Duration = Duration::from_millis(50);
const LAST_REPEAT: Duration = Duration::from_secs(1);

/// One dispatch of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Offered {
    pub(super) job: JobId,
    pub(super) version: u32,
}

/// How to acknowledge a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handback {
    Ack,
    Nak(Duration),
}

/// The answer to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    Gone,
    Unknown,
    /// No answer at all, or "ask again".
    Repeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The offer has no slot and was never asked for.
    Waiting,
    /// The offer has a slot and goes out with the next request.
    Ready,
    /// The ask is in flight.
    Asked,
    /// The ask got no answer and is repeated at this moment.
    Again(Instant),
}

#[derive(Debug)]
struct Ask {
    offer: v1::Offer,
    start_id: StartId,
    stage: Stage,
    tries: u32,
    parcels: Vec<u64>,
}

#[derive(Debug)]
struct Parcel<D> {
    delivery: D,
    offers: Vec<Offered>,
    open: usize,
    unknown: bool,
    born: Instant,
    kept: Instant,
}

/// Every offer that was delivered and is not decided. `D` is the delivery, which this module does not use.
#[derive(Debug)]
pub(super) struct Starts<D> {
    parcels: HashMap<u64, Parcel<D>>,
    next_parcel: u64,
    asks: HashMap<Offered, Ask>,
    waiting: VecDeque<Offered>,
    ready: VecDeque<Offered>,
    again: BTreeSet<(Instant, Offered)>,
    requests: usize,
    handbacks: Vec<(D, Handback)>,
}

impl<D> Starts<D> {
    pub(super) fn new() -> Starts<D> {
        Starts {
            parcels: HashMap::new(),
            next_parcel: 0,
            asks: HashMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            again: BTreeSet::new(),
            requests: 0,
            handbacks: Vec::new(),
        }
    }

    /// Takes in a delivery. An offer that already `runs` here needs no ask: it was started.
    pub(super) fn take(
        &mut self,
        delivery: D,
        offers: Vec<v1::Offer>,
        runs: impl Fn(Offered) -> bool,
        now: Instant,
    ) -> usize {
        let id = self.next_parcel;
        self.next_parcel += 1;
        let mut mine = Vec::with_capacity(offers.len());
        for offer in offers {
            // The bus delivers no offer without a job, and has the jobs of other invalid offers rejected.
            let Some(job) = JobId::from_slice(&offer.job_id) else { continue };
            let offered = Offered { job, version: offer.version };
            if runs(offered) || mine.contains(&offered) {
                continue;
            }
            mine.push(offered);
            if let Some(open) = self.asks.get_mut(&offered) {
                open.parcels.push(id);
                continue;
            }
            let ask = Ask { offer, start_id: StartId::random(), stage: Stage::Waiting, tries: 0, parcels: vec![id] };
            self.asks.insert(offered, ask);
            self.waiting.push_back(offered);
        }
        let open = mine.len();
        if open == 0 {
            self.handbacks.push((delivery, Handback::Ack));
        } else {
            let parcel = Parcel { delivery, offers: mine, open, unknown: false, born: now, kept: now };
            self.parcels.insert(id, parcel);
        }
        open
    }

    /// Gives up to `free` waiting offers a slot, the oldest first; returns how many took one.
    pub(super) fn admit(&mut self, free: usize) -> usize {
        let mut taken = 0;
        while taken < free {
            let Some(offered) = self.waiting.pop_front() else { break };
            if let Some(ask) = self.asks.get_mut(&offered) {
                ask.stage = Stage::Ready;
                self.ready.push_back(offered);
                taken += 1;
            }
        }
        taken
    }

    /// The next request to send, if there is something to ask for and another request may be in flight.
    pub(super) fn next_request(&mut self, lease: Duration) -> Option<Vec<(Offered, v1::StartAsk)>> {
        if self.requests >= MAX_REQUESTS || self.ready.is_empty() {
            return None;
        }
        let count = self.ready.len().min(MAX_ASKS);
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let mut request = Vec::with_capacity(count);
        for offered in self.ready.drain(..count) {
            let Some(ask) = self.asks.get_mut(&offered) else { continue };
            ask.stage = Stage::Asked;
            ask.tries += 1;
            let item = v1::StartAsk {
                job_id: ask.offer.job_id.clone(),
                version: ask.offer.version,
                dispatched_at: ask.offer.dispatched_at,
                start_id: Bytes::copy_from_slice(&ask.start_id.0),
                lease_ms,
                // The bus has already rejected offers that cannot be read.
                undecodable: false,
                tenant: ask.offer.tenant.clone(),
                topic: ask.offer.topic.clone(),
                pool: ask.offer.pool.clone(),
                carried: ask.offer.carried.clone(),
            };
            request.push((offered, item));
        }
        self.requests += 1;
        Some(request)
    }

    /// How long a request waits for its answer: longer each time that one of its asks got none. An answer that takes
    /// longer than the wait is lost, so otherwise no answer of a slow scheduler would ever arrive in time, and it would
    /// start attempts that no worker runs.
    pub(super) fn patience(&self, request: &[(Offered, v1::StartAsk)]) -> Duration {
        let tries = request.iter().filter_map(|(offered, _)| self.asks.get(offered)).map(|ask| ask.tries).max();
        START_WAIT * 2u32.pow(tries.unwrap_or(1).saturating_sub(1).min(3))
    }

    /// A request is over, answered or not.
    pub(super) fn request_over(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    /// Records the answer to an ask. Returns the offer for `Go`; its slot then belongs to the attempt. With `Gone` and
    /// `Unknown` the slot is free again.
    pub(super) fn answer(&mut self, offered: Offered, verdict: Verdict, now: Instant) -> Option<v1::Offer> {
        if verdict == Verdict::Repeat {
            if let Some(ask) = self.asks.get_mut(&offered) {
                let wait = (FIRST_REPEAT * 2u32.saturating_pow(ask.tries.min(10).saturating_sub(1))).min(LAST_REPEAT);
                let at = now + wait.mul_f64(0.75 + fastrand::f64() / 2.0);
                ask.stage = Stage::Again(at);
                self.again.insert((at, offered));
            }
            return None;
        }
        let ask = self.asks.remove(&offered)?;
        for id in ask.parcels {
            self.decided(id, verdict == Verdict::Unknown);
        }
        Some(ask.offer)
    }

    /// One offer of a parcel is decided; the last one determines how the delivery is acknowledged.
    fn decided(&mut self, id: u64, unknown: bool) {
        let Some(parcel) = self.parcels.get_mut(&id) else { return };
        parcel.open -= 1;
        parcel.unknown |= unknown;
        if parcel.open == 0
            && let Some(parcel) = self.parcels.remove(&id)
        {
            let back = if parcel.unknown { Handback::Nak(UNKNOWN_WAIT) } else { Handback::Ack };
            self.handbacks.push((parcel.delivery, back));
        }
    }

    /// Handles what is due: asks to be repeated, and deliveries whose offers found no slot. Returns how many slots that
    /// frees.
    pub(super) fn tick(&mut self, now: Instant) -> usize {
        let mut freed = 0;
        while let Some(&(at, offered)) = self.again.first() {
            if at > now {
                break;
            }
            self.again.pop_first();
            if let Some(ask) = self.asks.get_mut(&offered) {
                ask.stage = Stage::Ready;
                self.ready.push_back(offered);
            }
        }
        while let Some(parcels) = self.waiting.front().and_then(|o| self.asks.get(o)).map(|a| a.parcels.clone()) {
            let late = |id: &u64| self.parcels.get(id).is_none_or(|p| now.duration_since(p.born) >= SLOT_WAIT);
            if !parcels.iter().all(late) {
                break;
            }
            for id in parcels {
                freed += self.give_back(id);
            }
        }
        freed
    }

    /// Deliveries that have waited so long for an answer that the bus must get an in-progress report.
    pub(super) fn keep_alive(&mut self, now: Instant) -> impl Iterator<Item = &D> {
        self.parcels.values_mut().filter_map(move |parcel| {
            (now.duration_since(parcel.kept) >= PROGRESS).then(|| {
                parcel.kept = now;
                &parcel.delivery
            })
        })
    }

    /// Gives a delivery back at once. Its offers that were never asked for are forgotten; those that were asked for
    /// stay open. Returns how many slots that frees.
    fn give_back(&mut self, id: u64) -> usize {
        let Some(parcel) = self.parcels.remove(&id) else { return 0 };
        let mut freed = 0;
        for offered in parcel.offers {
            let Some(ask) = self.asks.get_mut(&offered) else { continue };
            ask.parcels.retain(|p| *p != id);
            let unasked = ask.tries == 0 && ask.parcels.is_empty();
            if unasked {
                freed += usize::from(ask.stage == Stage::Ready);
                self.asks.remove(&offered);
                self.waiting.retain(|o| *o != offered);
                self.ready.retain(|o| *o != offered);
            }
        }
        self.handbacks.push((parcel.delivery, Handback::Nak(Duration::ZERO)));
        freed
    }

    /// Gives back every delivery that holds an offer that was never asked for. Returns how many slots that frees.
    pub(super) fn give_back_unbegun(&mut self) -> usize {
        let unbegun: Vec<u64> =
            self.asks.values().filter(|ask| ask.tries == 0).flat_map(|ask| ask.parcels.clone()).collect();
        unbegun.into_iter().map(|id| self.give_back(id)).sum()
    }

    /// The acknowledgements to send to the bus.
    pub(super) fn take_handbacks(&mut self) -> Vec<(D, Handback)> {
        std::mem::take(&mut self.handbacks)
    }

    /// Whether there are acknowledgements to send.
    pub(super) fn has_handbacks(&self) -> bool {
        !self.handbacks.is_empty()
    }

    /// How many offers wait for a slot.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether every offer is decided.
    pub(super) fn is_empty(&self) -> bool {
        self.asks.is_empty() && self.parcels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(job: JobId) -> v1::Offer {
        v1::Offer { job_id: Bytes::copy_from_slice(job.as_bytes()), version: 3, ..v1::Offer::default() }
    }

    fn ids(request: &[(Offered, v1::StartAsk)]) -> Vec<Bytes> {
        request.iter().map(|(_, ask)| ask.start_id.clone()).collect()
    }

    const LEASE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn an_unanswered_ask_is_repeated_with_its_start_id_and_redeliveries_join_it() {
        let (mut starts, now, job) = (Starts::new(), Instant::now(), JobId::mint(0));
        starts.take("first", vec![offer(job)], |_| false, now);
        assert_eq!(starts.admit(9), 1);
        let first = starts.next_request(LEASE).unwrap();
        starts.take("second", vec![offer(job)], |_| false, now);
        assert_eq!((starts.admit(9), starts.next_request(LEASE)), (0, None), "not asked separately");

        starts.request_over();
        starts.answer(first[0].0, Verdict::Repeat, now);
        starts.tick(now + Duration::from_secs(2));
        let again = starts.next_request(LEASE).unwrap();
        assert_eq!(ids(&first), ids(&again));
        assert_eq!((starts.patience(&again), starts.patience(&[])), (2 * START_WAIT, START_WAIT));
        assert!(starts.answer(again[0].0, Verdict::Go, now).is_some());
        assert_eq!(starts.take_handbacks(), [("first", Handback::Ack), ("second", Handback::Ack)]);
        assert!(starts.is_empty());
    }

    #[tokio::test]
    async fn a_delivery_is_acked_when_all_its_offers_are_decided() {
        let (mut starts, now) = (Starts::new(), Instant::now());
        let jobs = [JobId::mint(0), JobId::mint(1), JobId::mint(2)];
        starts.take("parcel", jobs.map(offer).to_vec(), |_| false, now);
        starts.admit(3);
        let request = starts.next_request(LEASE).unwrap();
        starts.answer(request[0].0, Verdict::Go, now);
        starts.answer(request[1].0, Verdict::Gone, now);
        assert_eq!(starts.take_handbacks(), []);
        starts.answer(request[2].0, Verdict::Unknown, now);
        assert_eq!(starts.take_handbacks(), [("parcel", Handback::Nak(UNKNOWN_WAIT))]);
    }

    #[tokio::test]
    async fn offers_without_a_slot_go_back_after_a_while_and_what_was_asked_stays_open() {
        let (mut starts, now) = (Starts::new(), Instant::now());
        let jobs = [JobId::mint(0), JobId::mint(1)];
        starts.take("parcel", jobs.map(offer).to_vec(), |_| false, now);
        assert_eq!(starts.admit(1), 1);
        let request = starts.next_request(LEASE).unwrap();
        starts.tick(now + SLOT_WAIT / 2);
        assert_eq!(starts.take_handbacks(), []);
        starts.tick(now + SLOT_WAIT);
        assert_eq!(starts.take_handbacks(), [("parcel", Handback::Nak(Duration::ZERO))]);
        assert_eq!(starts.waiting(), 0);
        assert!(!starts.is_empty(), "the ask is still open");
        assert!(starts.answer(request[0].0, Verdict::Go, now).is_some());
        assert!(starts.is_empty());
    }

    #[tokio::test]
    async fn draining_gives_back_what_was_never_asked_and_frees_its_slots() {
        let (mut starts, now) = (Starts::new(), Instant::now());
        starts.take("asked", vec![offer(JobId::mint(0))], |_| false, now);
        starts.admit(1);
        starts.next_request(LEASE).unwrap();
        starts.take("ready", vec![offer(JobId::mint(1))], |_| false, now);
        starts.admit(1);
        starts.take("waiting", vec![offer(JobId::mint(2))], |_| false, now);
        assert_eq!(starts.give_back_unbegun(), 1);
        let mut back: Vec<_> = starts.take_handbacks().into_iter().map(|(d, _)| d).collect();
        back.sort_unstable();
        assert_eq!(back, ["ready", "waiting"]);
        assert!(!starts.is_empty());
    }

    #[tokio::test]
    async fn deliveries_are_kept_alive_while_their_ask_is_open() {
        let (mut starts, now) = (Starts::new(), Instant::now());
        starts.take("parcel", vec![offer(JobId::mint(0))], |_| false, now);
        starts.admit(1);
        assert_eq!(starts.keep_alive(now).count(), 0);
        assert_eq!(starts.keep_alive(now + PROGRESS).count(), 1);
        assert_eq!(starts.keep_alive(now + PROGRESS).count(), 0);
    }

    #[tokio::test]
    async fn only_two_requests_are_under_way_and_a_started_offer_is_not_asked_again() {
        let (mut starts, now, job) = (Starts::new(), Instant::now(), JobId::mint(0));
        for n in 0..3 {
            starts.take("parcel", vec![offer(JobId::mint(n))], |_| false, now);
            starts.admit(1);
            assert_eq!(starts.next_request(LEASE).is_some(), n < 2);
        }
        starts.request_over();
        assert!(starts.next_request(LEASE).is_some());
        assert_eq!(starts.take("runs", vec![offer(job)], |o| o.job == job, now), 0);
        assert_eq!(starts.take_handbacks(), [("runs", Handback::Ack)]);
    }
}
