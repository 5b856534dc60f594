//! The worker's loop: one task that owns all state, decides, and sends errands.
//!
//! The loop pulls, asks for starts, begins handlers, collects their outcomes, extends leases, publishes results and
//! listens to `ctl`. Because it does all of that, leases are extended exactly as long as the loop turns. Each turn
//! takes everything that is ready before it sends anything, so that messages are grouped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use muster_bus::{Bus, Consumer, Delivery, GroupPublisher, Receipt, Subscription};
use muster_domain::{JobErrorCode, JobId, Line, Tenant};
use muster_wire::{Body, v1, v1::result::Kind};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    Attempt, Order, Plan, Summary,
    context::{Context, StopReason},
    errands::{self, Done, Errand},
    handler::{HandlerError, failed, success},
    leases::{Leases, Standing, over, split},
    phase::Phase,
    pulls::{Pulls, Source},
    pulse::Vitals,
    results::{Results, result},
    running::{Ended, Fate, Running},
    slots::Slots,
    starts::{Offered, Starts, Verdict},
};

/// How often the loop checks the clock while it has work, and while it has none.
const BUSY_TICK: Duration = Duration::from_millis(50);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// How often unsettled results and old deliveries are checked.
const SWEEP: Duration = Duration::from_millis(250);
/// The most events that one turn takes before it sends.
const GULP: usize = 4096;
/// How long a cancel for an unknown attempt is remembered: it may overtake the `go`.
const EARLY_CANCEL: Duration = Duration::from_secs(10);
const MAX_EARLY_CANCELS: usize = 4096;

pub(super) struct Turn {
    pub(super) bus: Bus,
    pub(super) plan: Arc<Plan>,
    pub(super) slots: Slots,
    pub(super) starts: Starts<Arc<Receipt>>,
    pub(super) running: Running,
    pub(super) leases: Leases,
    pub(super) results: Results,
    pub(super) phase: Phase,
    pub(super) summary: Summary,
    pub(super) vitals: Arc<Vitals>,
    pulls: Pulls,
    publisher: Arc<GroupPublisher<v1::Result>>,
    errands: FuturesUnordered<Errand>,
    news: (mpsc::UnboundedSender<Attempt>, mpsc::UnboundedReceiver<Attempt>),
    early_cancels: HashMap<Attempt, (StopReason, Instant)>,
    sweep_at: Instant,
    /// Errands in flight that end in [`Done::Sent`].
    sending: usize,
}

impl Turn {
    pub(super) fn new(
        bus: Bus,
        plan: Arc<Plan>,
        pulls: Pulls,
        publisher: Arc<GroupPublisher<v1::Result>>,
        vitals: Arc<Vitals>,
    ) -> Turn {
        let now = Instant::now();
        Turn {
            bus,
            slots: Slots::new(plan.concurrency),
            starts: Starts::new(),
            running: Running::new(plan.grace),
            leases: Leases::new(plan.lease, now),
            results: Results::new(plan.lease / 3),
            phase: Phase::Working,
            summary: Summary::default(),
            vitals,
            pulls,
            publisher,
            errands: FuturesUnordered::new(),
            news: mpsc::unbounded_channel(),
            early_cancels: HashMap::new(),
            sweep_at: now,
            sending: 0,
            plan,
        }
    }

    /// Turns until the worker was asked to stop and has done so. Returns the consumers, to be closed.
    pub(super) async fn run(
        mut self,
        mut ctl: Subscription,
        mut orders: watch::Receiver<Order>,
    ) -> (Summary, Vec<Arc<Consumer>>) {
        let order = *orders.borrow_and_update();
        self.ordered(order);
        loop {
            self.send(Instant::now());
            let wake = self.next_wake();
            tokio::select! {
                Some(done) = self.errands.next() => self.done(done),
                Some(ended) = self.running.next() => self.ended(ended),
                Some(attempt) = self.news.1.recv() => self.leases.reported(attempt),
                Some(notice) = ctl.next() => self.heard(notice.body),
                Ok(()) = orders.changed() => {
                    let order = *orders.borrow_and_update();
                    self.ordered(order);
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            self.gulp(&mut ctl);
            let now = Instant::now();
            self.vitals.turned(now, self.slots.taken());
            self.tick(now);
            if self.advance(now) {
                return (self.summary, self.pulls.into_consumers());
            }
        }
    }

    /// Takes everything else that is ready, so that the resulting messages go out together.
    fn gulp(&mut self, ctl: &mut Subscription) {
        for _ in 0..GULP {
            let mut idle = true;
            if let Some(Some(done)) = self.errands.next().now_or_never() {
                self.done(done);
                idle = false;
            }
            if let Some(ended) = self.running.try_next() {
                self.ended(ended);
                idle = false;
            }
            if let Some(Some(notice)) = ctl.next().now_or_never() {
                self.heard(notice.body);
                idle = false;
            }
            if let Ok(attempt) = self.news.1.try_recv() {
                self.leases.reported(attempt);
                idle = false;
            }
            if idle {
                break;
            }
        }
    }

    fn next_wake(&self) -> Instant {
        let idle = self.starts.is_empty() && self.running.is_empty() && self.results.is_empty();
        let tick = Instant::now() + if idle && self.phase == Phase::Working { IDLE_TICK } else { BUSY_TICK };
        self.leases.progress_due().map_or(tick, |at| tick.min(at))
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Pulled { source, deliveries } => self.pulled(&source, deliveries),
            Done::Opened { source, consumer } => self.pulls.opened(&source, consumer),
            Done::Started { sent, answers } => {
                self.starts.request_over();
                for (offered, verdict, answer) in answers {
                    self.answered(offered, verdict, &answer, sent);
                }
            }
            Done::Extended { sent, answers } => self.extended(sent, answers),
            Done::Published { acked } => {
                let now = Instant::now();
                for (attempt, acked) in acked {
                    self.results.published(attempt, acked, now);
                }
            }
            Done::Sent => self.sending -= 1,
        }
    }

    /// Sends a message that needs no answer; only a leaving worker waits until it is sent.
    fn tell(&mut self, errand: Errand) {
        self.sending += 1;
        self.errands.push(errand);
    }

    /// Whether all such messages and all acknowledgements are sent.
    pub(super) fn all_told(&self) -> bool {
        self.sending == 0 && !self.starts.has_handbacks()
    }

    fn pulled(&mut self, source: &Source, deliveries: Vec<Delivery>) {
        let (now, messages, mut offers) = (Instant::now(), deliveries.len(), 0);
        for delivery in deliveries {
            let Delivery { body, receipt, .. } = delivery;
            let Body::Offer(v1::OfferGroup { items }) = body else {
                self.tell(errands::reject(receipt));
                continue;
            };
            offers += items.len();
            let running = &self.running;
            self.starts.take(Arc::new(receipt), items, |offered| running.runs(offered), now);
        }
        self.pulls.brought(source, messages, offers);
        if self.phase != Phase::Working {
            let freed = self.starts.give_back_unbegun();
            self.slots.give(freed);
        }
    }

    fn answered(&mut self, offered: Offered, verdict: Verdict, answer: &v1::StartAnswer, sent: Instant) {
        let offer = self.starts.answer(offered, verdict, Instant::now());
        match (verdict, offer) {
            (Verdict::Go, Some(offer)) => self.begin(offered, offer, answer, sent),
            (Verdict::Gone | Verdict::Unknown, Some(_)) => self.slots.give(1),
            _ => {}
        }
    }

    /// Begins an attempt after the answer `go`. From here on the attempt owns the slot with which it was asked for.
    fn begin(&mut self, offered: Offered, mut offer: v1::Offer, answer: &v1::StartAnswer, sent: Instant) {
        // The lease of a late answer began when a scheduler first received the ask.
        let used = self.plan.lease.saturating_sub(Duration::from_micros(answer.lease_us));
        let sent = sent.checked_sub(used).unwrap_or(sent);
        let attempt = Attempt { job: offered.job, fence: answer.fence };
        if self.phase != Phase::Working {
            // The answer came while the worker leaves: the attempt never began, so it is released.
            self.give_back(attempt, (&offer.tenant, &offer.topic), offer.slot, offer.carried, sent);
            self.slots.give(1);
            return;
        }
        if self.early_cancels.remove(&attempt).is_some() {
            self.slots.give(1);
            return;
        }
        let handler = self.plan.handlers.get(&offer.topic).cloned();
        let context = Context::new(attempt, &mut offer, answer, self.news.0.clone());
        match (handler, context) {
            (Some(handler), Some(context)) => {
                self.running.begin(attempt, offered, context, &handler, offer.payload, sent);
            }
            // Cannot happen: an offer names its line, and lines are opened only for topics with a handler.
            _ => {
                let error = HandlerError::retryable("this worker has no handler for the offer it got");
                let kind = Kind::Failed(failed(error));
                self.results.add(
                    attempt,
                    result(attempt, self.plan.worker.as_str(), &offer.tenant, &offer.topic, kind),
                    sent,
                );
                self.slots.give(1);
            }
        }
    }

    /// Handles the end of a handler.
    fn ended(&mut self, ended: Ended) {
        self.slots.give(1);
        let Ended { attempt, job, outcome } = ended;
        let kind = match (job.fate, outcome) {
            (Fate::Disowned, _) => {
                // The job was cancelled or timed out, and its handler has now really ended: a job that waits for its
                // concurrency slot may run.
                if job.context.concurrency_slot().is_some() {
                    self.report(attempt, &job.context, Kind::Release(v1::Release { delay_ms: 0 }), job.confirmed);
                }
                return;
            }
            (Fate::Leaving, Err(_)) => {
                self.release(attempt, &job.context, job.confirmed);
                return;
            }
            (_, Ok(result)) => {
                self.summary.succeeded += 1;
                Kind::Success(success(result))
            }
            (Fate::Ours, Err(error)) => {
                self.summary.failed += 1;
                tracing::info!(
                    job_id = %attempt.job, topic = %job.context.topic(), attempt = job.context.attempt(),
                    code = %error.code, retryable = error.retryable, "attempt failed: {}", error.message
                );
                Kind::Failed(failed(error))
            }
        };
        self.report(attempt, &job.context, kind, job.confirmed);
    }

    fn report(&mut self, attempt: Attempt, context: &Context, kind: Kind, confirmed: Instant) {
        let (tenant, topic) = (context.tenant().as_str(), context.topic().as_str());
        let result = result(attempt, self.plan.worker.as_str(), tenant, topic, kind);
        let (slot, traceparent, carried) = (context.concurrency_slot(), context.sampled_trace(), context.carried());
        self.results.add(attempt, v1::Result { slot, traceparent, carried, ..result }, confirmed);
    }

    /// Releases an attempt, unless it was already reported.
    pub(super) fn release(&mut self, attempt: Attempt, context: &Context, confirmed: Instant) {
        let (tenant, topic) = (context.tenant().as_str(), context.topic().as_str());
        self.give_back(attempt, (tenant, topic), context.concurrency_slot(), context.carried(), confirmed);
    }

    fn give_back(
        &mut self,
        attempt: Attempt,
        (tenant, topic): (&str, &str),
        slot: Option<v1::Slot>,
        carried: Bytes,
        confirmed: Instant,
    ) {
        self.summary.released += 1;
        let kind = Kind::Release(v1::Release { delay_ms: 0 });
        let result = result(attempt, self.plan.worker.as_str(), tenant, topic, kind);
        self.results.add(attempt, v1::Result { slot, carried, ..result }, confirmed);
    }

    fn extended(&mut self, sent: Instant, answers: Vec<(Attempt, v1::ExtendAsk, Standing)>) {
        let mut whole = true;
        for (attempt, ask, said) in answers {
            match said {
                Standing::Held => {
                    self.running.confirm(attempt, sent);
                    self.results.confirm(attempt, sent);
                }
                Standing::Settled => {
                    self.results.forget(attempt);
                }
                Standing::Over(reason) => self.over(attempt, reason),
                Standing::Unknown => {
                    whole = false;
                    if let (Some(report), Some(job)) = (ask.progress, self.running.get(attempt)) {
                        job.context.restore_progress(report);
                    }
                }
            }
        }
        self.leases.answered(whole, Instant::now());
    }

    /// The worker no longer holds an attempt: its handler stops, and the worker reports nothing more about it.
    fn over(&mut self, attempt: Attempt, reason: StopReason) {
        self.results.forget(attempt);
        if self.running.stop(attempt, reason) {
            self.summary.lost += 1;
            tracing::info!(job_id = %attempt.job, ?reason, "attempt is no longer ours; stopping its handler");
        }
    }

    /// Handles a notice on `ctl`.
    fn heard(&mut self, notice: Body) {
        let Body::Control(control) = notice else { return };
        for settled in control.settled {
            if let Some(job) = JobId::from_slice(&settled.job_id) {
                self.results.forget(Attempt { job, fence: settled.fence });
            }
        }
        for cancel in control.cancelled {
            let Some(job) = JobId::from_slice(&cancel.job_id) else { continue };
            let attempt = Attempt { job, fence: cancel.fence };
            let reason = over(cancel.standing()).unwrap_or(StopReason::Cancelled);
            let may_come = self.running.get(attempt).is_none() && !self.starts.is_empty();
            if may_come && self.early_cancels.len() < MAX_EARLY_CANCELS {
                self.early_cancels.insert(attempt, (reason, Instant::now()));
            }
            self.over(attempt, reason);
        }
        for pool in control.pools {
            let (Ok(line), Ok(tenant)) = (Line::named(&pool.topic, &pool.pool), Tenant::parse(&pool.tenant)) else {
                continue;
            };
            let ours = self.plan.all_tenants || tenant == self.plan.tenant;
            let source = Source { tenant, line };
            if ours && self.plan.handlers.contains_key(&pool.topic) && self.pulls.announced(&source, Instant::now()) {
                self.errands.push(errands::open(self.bus.clone(), source));
            }
        }
        if control.drain {
            self.ordered(Order::Drain);
        }
    }

    /// Handles everything that is due by time.
    fn tick(&mut self, now: Instant) {
        let freed = self.starts.tick(now);
        self.slots.give(freed);
        for attempt in self.running.tick(now) {
            self.timed_out(attempt);
        }
        if self.sweep_at > now {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.results.tick(now);
        let closed = self.pulls.sweep(now);
        if !closed.is_empty() {
            self.tell(errands::close(closed));
        }
        self.early_cancels.retain(|_, (_, since)| now.duration_since(*since) < EARLY_CANCEL);
        let old: Vec<_> = self.starts.keep_alive(now).map(Arc::clone).collect();
        if !old.is_empty() {
            self.tell(errands::keep(old));
        }
    }

    /// An attempt took longer than allowed, by this worker's own clock. The scheduler notices as well; if the scheduler
    /// was first, this report is stale, which is harmless.
    fn timed_out(&mut self, attempt: Attempt) {
        let Some((context, confirmed)) = self.running.get(attempt).map(|job| (job.context.clone(), job.confirmed))
        else {
            return;
        };
        self.running.stop(attempt, StopReason::TimedOut);
        self.summary.failed += 1;
        let error = HandlerError::retryable("the attempt took longer than timeout_ms")
            .code(JobErrorCode::AttemptTimeout.as_str());
        self.report(attempt, &context, Kind::Failed(failed(error)), confirmed);
    }

    /// Sends everything that is ready to be sent.
    fn send(&mut self, now: Instant) {
        let taken = self.starts.admit(self.slots.free());
        self.slots.take(taken);
        while let Some(asks) = self.starts.next_request(self.plan.lease) {
            let wait = self.starts.patience(&asks);
            self.errands.push(errands::start(self.bus.clone(), self.plan.worker.to_string(), asks, wait));
        }
        let results = self.results.take_ready();
        if !results.is_empty() {
            self.errands.push(errands::publish(Arc::clone(&self.publisher), results));
        }
        let handbacks = self.starts.take_handbacks();
        if !handbacks.is_empty() {
            self.tell(errands::hand_back(handbacks));
        }
        self.extend(now);
        self.pull();
    }

    fn extend(&mut self, now: Instant) {
        let Some(due) = self.leases.due(now) else { return };
        let mut asks = HashMap::new();
        if let Some(moment) = due.before {
            let running = self.running.to_extend(moment);
            asks.extend(running.map(|(attempt, job)| {
                let context = &job.context;
                let progress = context.take_progress();
                (attempt, self.leases.ask(attempt, context.tenant().as_str(), context.topic().as_str(), progress))
            }));
            let finished = self.results.to_extend(moment);
            asks.extend(finished.map(|(attempt, r)| (attempt, self.leases.ask(attempt, &r.tenant, &r.topic, None))));
        }
        for attempt in due.progress {
            let Some(job) = self.running.get(attempt).filter(|job| job.fate != Fate::Disowned) else { continue };
            if let Some(progress) = job.context.take_progress() {
                let (tenant, topic) = (job.context.tenant().as_str(), job.context.topic().as_str());
                asks.insert(attempt, self.leases.ask(attempt, tenant, topic, Some(progress)));
            }
        }
        if asks.is_empty() {
            return;
        }
        self.leases.asked();
        let requests = split(asks.into_iter().collect(), self.bus.max_message());
        let patience = self.leases.patience();
        self.errands.push(errands::extend(self.bus.clone(), self.plan.worker.to_string(), requests, patience));
    }

    /// Pulls as much as fits the free slots. Topics do not reserve slots from each other: offers that are too many wait
    /// a little and then go back.
    fn pull(&mut self) {
        let free = self.slots.free();
        if self.phase != Phase::Working || free == 0 || self.starts.waiting() > 0 || self.results.is_full() {
            return;
        }
        for (source, consumer, most) in self.pulls.due(free, Instant::now()) {
            self.errands.push(errands::pull(consumer, source, most));
        }
    }
}
