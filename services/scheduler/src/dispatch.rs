//! Decides pending jobs: straight onto the bus, into the backlog, or to wait for their time.
//!
//! Knows: what follows from each decision, and in which order. Promises: one event per job, the
//! whole batch in one pipeline; whoever has moved a job meanwhile is right, and the submit is
//! dropped; a submit that comes twice changes nothing and repeats what the first time may have
//! left undone; one whose job Redis has forgotten makes it again. Where a topic's jobs start by the
//! hundred a second, a newcomer is offered as it is, `pending`, or stands in line as it is while the
//! window is full: its offer or its entry is all that is written (see the ADRs `offered-as-it-is` and
//! `standing-in-line`). Leaves to others: the decision itself (`decide`), releasing what was held
//! (`backlog`), the effects of ends (`flow`).

mod in_line;

use std::{sync::Arc, time::Duration};

use in_line::{Keeping, hold, keep};
use muster_bus::{Subject, subjects};
use muster_domain::{
    Head, JobId, Outcome, Priority, State, Time,
    job::{PENDING_LOOK, Unmoved},
};
use muster_flow::Offering;
use muster_store::{Fields, Moved, QueueEntry, Record, Step, StoreError};
use muster_telemetry::{Counter, count};
use muster_wire::{
    Body, job_id,
    v1::{JobEvent, Offer, Submit, SubmitGroup},
};

use crate::{
    context::{Context, forward_of},
    decide::{Decision, Question},
    events,
    intake::{Work, bury},
    local_claims::Memory,
    offers,
    questions::Rest,
    route_notices, route_registry,
    route_state::{PerRoute, RouteState},
    survey,
};

/// Who waits no longer than this in all is kept by who puts it in line: well within the claim that comes with it.
const BRIEF: Duration = Duration::from_secs(4);
/// A submit older than this was published again: its job has waited long enough to be held.
const FRESH: Duration = Duration::from_secs(5);

/// Groups of accepted jobs.
pub(crate) struct Dispatch;

impl Work for Dispatch {
    type Item = Submit;
    const NAME: &'static str = "dispatch";

    fn subject() -> Subject {
        subjects::submit()
    }

    fn open(body: Body) -> Option<Vec<Submit>> {
        match body {
            Body::Submit(group) => Some(group.items),
            _ => None,
        }
    }

    fn close(items: Vec<Submit>) -> Body {
        Body::Submit(SubmitGroup { items })
    }

    async fn handle(context: &Context, items: Vec<Submit>, again: bool) -> Vec<usize> {
        let Some(questions) = &context.questions else { return go_ahead(context, items, again).await };
        let Rest { items, places, mut failed } = questions.take_out(items, context.store().now());
        if !items.is_empty() {
            let undone = go_ahead(context, items, again).await;
            failed.extend(undone.into_iter().map(|nth| places[nth]));
        }
        failed
    }
}

/// Decides about jobs that nobody else has a say in, or no more. As [`Work::handle`].
pub(crate) async fn go_ahead(context: &Context, items: Vec<Submit>, again: bool) -> Vec<usize> {
    let (asks, mut failed) = read(context, items).await;
    survey::unknown(context, asks.iter().map(|ask| &ask.route)).await;
    let Decisions { offered, lined, decided } = decide(context, asks, again);
    let moved = if decided.is_empty() { Vec::new() } else { apply(context, decided).await };
    let mut todo = Consequences::of(offered.len(), lined.len());
    offered.into_iter().for_each(|ask| todo.offer_as_it_is(ask, context.store().now()));
    lined.into_iter().for_each(|(ask, brief)| todo.line(ask, brief.then_some(&context.memory)));
    moved.into_iter().for_each(|answer| todo.add(answer, again));
    let done = carry_out(context, todo).await;
    failed.extend(done);
    failed
}

/// One submit, read.
struct Ask {
    /// Its place in the batch.
    place: usize,
    id: JobId,
    route: Arc<RouteState>,
    submit: Submit,
}

impl Ask {
    /// Nothing but the window holds it up.
    fn may_pass(&self) -> bool {
        !self.is_limited() && !self.route.holds_newcomers()
    }

    /// It needs a concurrency slot.
    fn is_limited(&self) -> bool {
        self.submit.spec.as_ref().is_some_and(|spec| !spec.concurrency_key.is_empty())
    }

    /// Its entry in the backlog.
    fn entry(&self, version: u32, since: Time) -> QueueEntry {
        let priority = Priority::from_code(self.submit.spec.as_ref().map_or(0, |spec| spec.priority));
        let (tenant, line, limited) = (self.route.tenant.clone(), self.route.line.clone(), self.is_limited());
        QueueEntry { tenant, line, priority, job: self.id, version, since, limited }
    }

    /// Gives the place in the window back that was taken for it.
    fn give_back(&self, taken: bool) {
        if taken {
            self.route.window().give_back(1);
        }
    }
}

/// What was decided about it.
struct Decided {
    ask: Ask,
    decision: Decision,
}

/// What the store made of it.
struct Answered {
    ask: Ask,
    decision: Decision,
    moved: Result<Moved, StoreError>,
}

/// Reads names and ids. What cannot be read becomes a dead letter.
async fn read(context: &Context, items: Vec<Submit>) -> (Vec<Ask>, Vec<usize>) {
    let (mut asks, mut failed) = (Vec::with_capacity(items.len()), Vec::new());
    for (place, submit) in items.into_iter().enumerate() {
        let id = job_id(&submit.job_id).map_err(|fault| fault.to_string());
        let route = match &submit.spec {
            Some(spec) => {
                context.routes.route_for(&spec.tenant, &spec.topic, &spec.requires).map_err(|fault| fault.to_string())
            }
            None => Err("a submit without a spec".to_owned()),
        };
        match (id, route) {
            (Ok(id), Ok(route)) => asks.push(Ask { place, id, route, submit }),
            (Err(reason), _) | (_, Err(reason)) => {
                if !bury::<Dispatch>(context, submit, &reason).await {
                    failed.push(place);
                }
            }
        }
    }
    (asks, failed)
}

/// What is to become of a batch.
#[derive(Default)]
struct Decisions {
    /// Offered without a word in their records: a start takes them from `pending`.
    offered: Vec<Ask>,
    /// In line without a word in their records; for so short a time that this replica keeps them, or not.
    lined: Vec<(Ask, bool)>,
    /// Everybody else.
    decided: Vec<Decided>,
}

fn decide(context: &Context, asks: Vec<Ask>, again: bool) -> Decisions {
    let now = context.store().now();
    let mut decisions = Decisions::default();
    for ask in asks {
        let question = Question { run_at: Time(ask.submit.run_at).some(), now, limited: ask.is_limited() };
        let mut window = ask.route.window();
        let decision = context.decider.decide(&question, ask.route.view(&window));
        if decision == Decision::Dispatch {
            window.take(1);
        }
        let wait = window.short_wait().filter(|_| !again && !ask.route.holds_newcomers());
        drop(window);
        match (decision, wait.filter(|_| may_stay_pending(&ask, now) && !context.is_decided_outside(&ask.route))) {
            (Decision::Dispatch, Some(_)) => decisions.offered.push(ask),
            (Decision::Hold, Some(wait)) => {
                let age = now.since(Time(ask.submit.pending_since));
                decisions.lined.push((ask, age + wait <= BRIEF));
            }
            _ => decisions.decided.push(Decided { ask, decision }),
        }
    }
    decisions
}

/// Whether nothing about this job has to be looked at before its first look, so that a short wait
/// needs no word in its record: it has just come, and has no moment of its own to keep.
fn may_stay_pending(ask: &Ask, now: Time) -> bool {
    let submit = &ask.submit;
    let is_bounded = submit.deadline != 0 || submit.spec.as_ref().is_none_or(|spec| spec.start_by != 0);
    let job = Unmoved { version: submit.version, is_bounded, has_key: ask.is_limited() };
    job.may_stay() && now.since(Time(submit.pending_since)) < FRESH
}

/// Applies the decisions in one pipeline. A job whose own moment says otherwise, by its node's
/// clock, is decided once more.
async fn apply(context: &Context, decided: Vec<Decided>) -> Vec<Answered> {
    let mut answered = apply_once(context, decided).await;
    let early = |a: &Answered| matches!(&a.moved, Ok(moved) if moved.outcome == Outcome::Early);
    if !answered.iter().any(early) {
        return answered;
    }
    let (again, mut rest): (Vec<_>, Vec<_>) = answered.drain(..).partition(early);
    let other = |a: Answered| {
        let decision = match a.decision {
            Decision::Dispatch => {
                a.ask.route.window().give_back(1);
                Decision::Schedule
            }
            Decision::Hold => Decision::Schedule,
            // Its time came between the decision and the script.
            Decision::Schedule if a.ask.may_pass() && a.ask.route.window().take(1) == 1 => Decision::Dispatch,
            Decision::Schedule => Decision::Hold,
        };
        Decided { ask: a.ask, decision }
    };
    rest.extend(apply_once(context, again.into_iter().map(other).collect()).await);
    rest
}

async fn apply_once(context: &Context, decided: Vec<Decided>) -> Vec<Answered> {
    let step = |d: &Decided| Step::new(d.ask.id, d.decision.event(), d.ask.submit.version.into());
    let moved = context.store().apply(decided.iter().map(step).collect()).await;
    decided.into_iter().zip(moved).map(|(d, moved)| Answered { ask: d.ask, decision: d.decision, moved }).collect()
}

/// What follows from a batch of decisions.
#[derive(Default)]
struct Consequences {
    /// One message each, or several a message on hot subjects.
    offers: [Offers; 2],
    held: Vec<(usize, Arc<RouteState>, QueueEntry)>,
    /// In line as they were accepted, and ours to release.
    kept: Keeping,
    homes: Vec<(usize, JobId, Duration)>,
    /// Those of them that were queued before this, by somebody else or by an earlier delivery.
    queued_before: Vec<JobId>,
    /// Redis has forgotten these.
    forgotten: Vec<(usize, Submit)>,
    events: Vec<JobEvent>,
    failed: Vec<usize>,
}

#[derive(Default)]
struct Offers {
    items: Vec<Offer>,
    from: Vec<(usize, Arc<RouteState>)>,
}

impl Offers {
    /// How many of these may share a message, by the route that bears the least.
    fn most(&self) -> usize {
        let mut last: Option<&Arc<RouteState>> = None;
        let mut most = usize::MAX;
        for (_, route) in &self.from {
            if !last.is_some_and(|last| Arc::ptr_eq(last, route)) {
                most = most.min(route.window().per_message());
                last = Some(route);
            }
        }
        most
    }
}

async fn carry_out(context: &Context, todo: Consequences) -> Vec<usize> {
    let Consequences { offers: [single, shared], held, kept, homes, queued_before, forgotten, events, mut failed } =
        todo;
    muster_flow::failpoint!("dispatch.after_apply");
    let offered = single.from.iter().chain(&shared.from).map(|(_, route)| route);
    let in_line = held.iter().map(|(_, route, _)| route).chain(kept.rest.iter().map(|(_, route, _)| route));
    route_registry::note(context.store(), route_registry::due(offered.chain(in_line))).await;
    // Before anybody can start them, so that watchers hear of both in this order.
    events::tell(context.bus(), events).await;
    let how = |most| Offering { most, again: false };
    // Nearly always they are of one route.
    let most = shared.most();
    let (single, shared, unheld, unkept, unforwarded, unmade) = tokio::join!(
        offer(context, single, how(1)),
        offer(context, shared, how(most)),
        hold(context, held),
        keep(context, kept),
        forward(context, homes),
        make_again(context, forgotten),
    );
    muster_flow::failpoint!("dispatch.after_offer");
    look_at_ended(context, queued_before).await;
    for places in [single, shared, unheld, unkept, unforwarded, unmade] {
        failed.extend(places);
    }
    failed
}

impl Consequences {
    /// Of so many that are offered as they are, and so many that stand in line so.
    fn of(offered: usize, lined: usize) -> Consequences {
        let shared = Offers { items: Vec::with_capacity(offered), from: Vec::with_capacity(offered) };
        Consequences {
            offers: [Offers::default(), shared],
            kept: Keeping { entries: Vec::with_capacity(lined), rest: Vec::with_capacity(lined) },
            events: Vec::with_capacity(offered + lined),
            ..Consequences::default()
        }
    }

    fn add(&mut self, answer: Answered, again: bool) {
        let Answered { ask, decision, moved } = answer;
        let taken = decision == Decision::Dispatch;
        let moved = match moved {
            Ok(moved) => moved,
            Err(fault) => {
                ask.give_back(taken);
                // One that cannot be read is not decided, however often it comes.
                if !fault.is_unreadable() {
                    self.failed.push(ask.place);
                }
                return;
            }
        };
        let Some(head) = moved.done().or_else(|| decided_before(&moved, &ask, again)) else {
            ask.give_back(taken);
            match moved.outcome {
                // Early twice is a clock between two moments: it comes again.
                Outcome::Early => self.failed.push(ask.place),
                Outcome::Missing => self.forgotten.push((ask.place, ask.submit)),
                // Somebody else has moved the job.
                _ => {}
            }
            return;
        };
        ask.give_back(taken && head.state() != State::Dispatched);
        if let Some(after) = forward_of(&moved, head).or_else(|| ends_soon(head, moved.now)) {
            self.homes.push((ask.place, ask.id, after));
            if head.state() == State::Queued && moved.outcome != Outcome::Applied {
                self.queued_before.push(ask.id);
            }
        }
        if !again {
            self.events.push(events::pending(&ask.submit, &ask.route));
        }
        self.events.push(events::moved(ask.id, &ask.route, head));
        match head.state() {
            State::Dispatched => self.offer(ask, head, moved.outcome),
            State::Queued => self.hold(ask, head),
            _ => {}
        }
    }

    fn offer(&mut self, ask: Ask, head: &Head, outcome: Outcome) {
        let which = match outcome {
            Outcome::Applied => {
                events::observe_first_dispatch(head, Time(ask.submit.pending_since));
                usize::from(ask.route.window().is_hot())
            }
            // The same decision, so the same message id: what stands there already stays alone, what
            // its first decider died before publishing goes out now.
            _ => 0,
        };
        let offers = &mut self.offers[which];
        offers.items.push(offers::from_submit(ask.submit, head, &ask.route.line));
        offers.from.push((ask.place, ask.route));
    }

    fn hold(&mut self, ask: Ask, head: &Head) {
        let entry = ask.entry(head.version, head.created_at);
        self.held.push((ask.place, ask.route, entry));
    }

    /// It stays `pending`; whoever starts it does so under the version it was accepted with.
    fn offer_as_it_is(&mut self, ask: Ask, now: Time) {
        events::observe_dispatch(Time(ask.submit.pending_since), now);
        self.events.push(events::pending(&ask.submit, &ask.route));
        let shared = &mut self.offers[1];
        shared.items.push(offers::as_it_is(ask.submit, now, &ask.route.line));
        shared.from.push((ask.place, ask.route));
    }

    /// It stays `pending`; its entry, under the version it was accepted with, is what releases it. LocalClaims are only those
    /// of the usual priority: of who is more urgent, or less, all replicas must know.
    fn line(&mut self, ask: Ask, memory: Option<&Memory>) {
        self.events.push(events::pending(&ask.submit, &ask.route));
        let entry = ask.entry(ask.submit.version, Time(ask.submit.pending_since));
        let memory = memory.filter(|_| entry.priority == Priority::Normal);
        match memory.and_then(|memory| memory.copy(ask.submit)) {
            Some(copy) => {
                self.kept.entries.push(entry);
                self.kept.rest.push((ask.place, ask.route, copy));
            }
            None => self.held.push((ask.place, ask.route, entry)),
        }
    }
}

/// A submit's home is 30 s ahead whatever the job says. One that runs out of time sooner, and
/// meets its first decision, has its home brought to that moment.
fn ends_soon(head: &Head, now: Time) -> Option<Duration> {
    let home = head.created_at + PENDING_LOOK;
    let soon = |moment: &Time| *moment < home && !home.reached(now);
    let bounds = [head.deadline, head.start_by.filter(|_| !head.was_started())];
    bounds.into_iter().flatten().filter(soon).min().map(|moment| moment.remaining(now))
}

/// Where the job stands, if an earlier delivery of this very submit was decided otherwise and may
/// have died before its effects were done.
fn decided_before<'a>(moved: &'a Moved, ask: &Ask, again: bool) -> Option<&'a Head> {
    let next = |head: &&Head| head.version == ask.submit.version + 1;
    let ours = |head: &&Head| matches!(head.state(), State::Dispatched | State::Queued | State::Scheduled);
    moved.head.as_ref().filter(|_| again && moved.outcome == Outcome::Stale).filter(next).filter(ours)
}

/// Makes jobs again that Redis has forgotten: their submits came too late to be read again with the others.
/// All their places if that failed: whatever was made meanwhile is left alone then.
async fn make_again(context: &Context, forgotten: Vec<(usize, Submit)>) -> Vec<usize> {
    if forgotten.is_empty() {
        return Vec::new();
    }
    let (places, submits): (Vec<usize>, Vec<Submit>) = forgotten.into_iter().unzip();
    let done = context.flow.recreate(&submits).await;
    if done.made > 0 {
        count(Counter::Reconciled, &[("action", "recreate")], done.made);
        tracing::warn!(event = "recreated", n = done.made, "submits came whose jobs redis had forgotten");
    }
    if done.fault.is_some() { places } else { Vec::new() }
}

/// Publishes offers; the places of those that do not stand on the stream.
async fn offer(context: &Context, offers: Offers, how: Offering) -> Vec<usize> {
    if offers.items.is_empty() {
        return Vec::new();
    }
    let published = context.flow.offer(offers.items, how).await;
    let (mut stand, mut failed) = (PerRoute::default(), Vec::new());
    for ((place, route), result) in offers.from.into_iter().zip(published) {
        match result {
            Ok(()) => stand.add(&route),
            Err(_) => {
                route.window().give_back(1);
                failed.push(place);
            }
        }
    }
    route_notices::published(context, &stand, how.most).await;
    failed
}

/// Who repeats what somebody else has done may be so slow that the job has ended meanwhile and its home was dropped:
/// then it has just been given one again, which is due in a quarter of an hour. Whoever has ended by now is looked at
/// now; who ends later drops its home later than this.
async fn look_at_ended(context: &Context, jobs: Vec<JobId>) {
    if jobs.is_empty() {
        return;
    }
    let records = context.store().read(&jobs, Fields::NONE).await;
    let over = |record: &Option<Record>| record.as_ref().is_none_or(|record| record.head.state().is_end());
    let ended = jobs.into_iter().zip(records).filter(|(_, record)| record.as_ref().is_ok_and(over));
    let due: Vec<_> = ended.map(|(job, _)| (job, Duration::ZERO)).collect();
    // If the store does not answer, the look comes when it is due.
    let _ = context.forward(&due).await;
}

/// Brings homes nearer; all their places if that failed.
async fn forward(context: &Context, homes: Vec<(usize, JobId, Duration)>) -> Vec<usize> {
    let due: Vec<_> = homes.iter().map(|(_, id, after)| (*id, *after)).collect();
    match context.forward(&due).await {
        Ok(()) => Vec::new(),
        Err(_) => homes.into_iter().map(|(place, ..)| place).collect(),
    }
}
