//! Decides pending jobs: straight onto the bus, into the backlog, or to wait for their time.
//!
//! Knows: what follows from each decision, and in which order. Promises: one event per job, and the whole batch in one
//! pipeline. If another process has moved a job meanwhile, its step counts and the submit is dropped. A repeated submit
//! changes nothing and repeats what the first delivery may have left undone. A submit whose job Redis has forgotten
//! creates the job again. On a hot topic (hundreds of starts a second) a new job keeps its accepted record, `pending`:
//! the scheduler writes only its offer or, while the window is full, its queue entry (see the ADRs `offered-as-it-is`
//! and `standing-in-line`). Leaves to others: the decision itself (`decide`), releasing held jobs (`backlog`), the
//! effects of ends (`flow`).

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

/// Jobs expected to wait less than this are claimed by the replica that enqueues them. It is well within that claim.
const BRIEF: Duration = Duration::from_secs(4);
/// A submit older than this was published again. Its job has waited so long that its hold is written to the record.
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

/// Decides jobs that need no answer of a decider, or have it. Arguments and result as in [`Work::handle`].
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

/// A submit with its parsed id and route.
struct Ask {
    /// Its index in the batch.
    place: usize,
    id: JobId,
    route: Arc<RouteState>,
    submit: Submit,
}

impl Ask {
    /// Whether only the window can hold this job back.
    fn may_pass(&self) -> bool {
        !self.is_limited() && !self.route.holds_newcomers()
    }

    /// Whether the job needs a concurrency slot.
    fn is_limited(&self) -> bool {
        self.submit.spec.as_ref().is_some_and(|spec| !spec.concurrency_key.is_empty())
    }

    /// The job's entry in the backlog.
    fn entry(&self, version: u32, since: Time) -> QueueEntry {
        let priority = Priority::from_code(self.submit.spec.as_ref().map_or(0, |spec| spec.priority));
        let (tenant, line, limited) = (self.route.tenant.clone(), self.route.line.clone(), self.is_limited());
        QueueEntry { tenant, line, priority, job: self.id, version, since, limited }
    }

    /// Returns the job's place in the window, if one was taken.
    fn give_back(&self, taken: bool) {
        if taken {
            self.route.window().give_back(1);
        }
    }
}

/// A submit with its decision.
struct Decided {
    ask: Ask,
    decision: Decision,
}

/// A submit with its decision and the store's answer.
struct Answered {
    ask: Ask,
    decision: Decision,
    moved: Result<Moved, StoreError>,
}

/// Parses names and ids. A submit that cannot be parsed becomes a dead letter.
async fn read(context: &Context, items: Vec<Submit>) -> (Vec<Ask>, Vec<usize>) {
    let (mut asks, mut failed) = (Vec::with_capacity(items.len()), Vec::new());
    for (place, submit) in items.into_iter().enumerate() {
        let id = job_id(&submit.job_id).map_err(|fault| fault.to_string());
        let route = match &submit.spec {
            Some(spec) => {
                context.routes.route_for(&spec.tenant, &spec.topic, &spec.requires).map_err(|fault| fault.to_string())
            }
            None => Err("the submit has no spec".to_owned()),
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

/// The decisions about a batch, sorted by the way they are carried out.
#[derive(Default)]
struct Decisions {
    /// To be offered without a transition in their records: a start takes them from `pending`.
    offered: Vec<Ask>,
    /// To be enqueued without a transition in their records. The bool: the expected wait is so short that this replica
    /// claims the entry.
    lined: Vec<(Ask, bool)>,
    /// All others: their transition is written.
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

/// Whether the job may wait a short time without a transition in its record: it is new, and has no deadline, start
/// bound or limit that needs a check before its first one.
fn may_stay_pending(ask: &Ask, now: Time) -> bool {
    let submit = &ask.submit;
    let is_bounded = submit.deadline != 0 || submit.spec.as_ref().is_none_or(|spec| spec.start_by != 0);
    let job = Unmoved { version: submit.version, is_bounded, has_key: ask.is_limited() };
    job.may_stay() && now.since(Time(submit.pending_since)) < FRESH
}

/// Applies the decisions in one pipeline. If the node's clock contradicts a decision (`Early`), the job is decided once
/// more.
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
            // `run_at` was reached between the decision and the script.
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

/// The work that follows from a batch of decisions.
#[derive(Default)]
struct Consequences {
    /// First, one offer per message; second, several per message on hot subjects.
    offers: [Offers; 2],
    held: Vec<(usize, Arc<RouteState>, QueueEntry)>,
    /// To be enqueued as they were accepted, claimed by this replica.
    kept: Keeping,
    homes: Vec<(usize, JobId, Duration)>,
    /// Jobs in `homes` that another replica or an earlier delivery had queued before.
    queued_before: Vec<JobId>,
    /// Jobs that Redis has forgotten.
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
    /// How many of these offers may share a message: the lowest limit of their routes.
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
    // Publish the events before a worker can start the jobs, so that watchers see both in this order.
    events::tell(context.bus(), events).await;
    let how = |most| Offering { most, again: false };
    // Nearly always, all of them belong to one route.
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
    /// With capacity for this many jobs offered as they are, and this many enqueued as they are.
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
                // A job whose record cannot be read cannot be decided, so a redelivery does not help.
                if !fault.is_unreadable() {
                    self.failed.push(ask.place);
                }
                return;
            }
        };
        let Some(head) = moved.done().or_else(|| decided_before(&moved, &ask, again)) else {
            ask.give_back(taken);
            match moved.outcome {
                // `Early` twice means that the clock is between two times: the submit is delivered again.
                Outcome::Early => self.failed.push(ask.place),
                Outcome::Missing => self.forgotten.push((ask.place, ask.submit)),
                // Another process has moved the job.
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
        self.events.push(events::moved(ask.id, &ask.route, head, events::run_of(&ask.submit)));
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
            // The same decision has the same message id. If the offer is on the stream already, the stream drops this
            // copy; if the first decider died before it published, the offer goes out now.
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

    /// The job stays `pending`; a start moves it under the version it was accepted with.
    fn offer_as_it_is(&mut self, ask: Ask, now: Time) {
        events::observe_dispatch(Time(ask.submit.pending_since), now);
        self.events.push(events::pending(&ask.submit, &ask.route));
        let shared = &mut self.offers[1];
        shared.items.push(offers::as_it_is(ask.submit, now, &ask.route.line));
        shared.from.push((ask.place, ask.route));
    }

    /// The job stays `pending`; its queue entry, under the version it was accepted with, releases it. Only jobs of
    /// normal priority become local claims: all replicas must see the more and the less urgent ones.
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

/// A submitted job has its home 30 s ahead. If the job's time limit comes sooner, its first decision forwards the home
/// to that time.
fn ends_soon(head: &Head, now: Time) -> Option<Duration> {
    let home = head.created_at + PENDING_LOOK;
    let soon = |moment: &Time| *moment < home && !home.reached(now);
    let bounds = [head.deadline, head.start_by.filter(|_| !head.was_started())];
    bounds.into_iter().flatten().filter(soon).min().map(|moment| moment.remaining(now))
}

/// The job's head, if an earlier delivery of this submit led to another decision and may have stopped before its
/// effects were done.
fn decided_before<'a>(moved: &'a Moved, ask: &Ask, again: bool) -> Option<&'a Head> {
    let next = |head: &&Head| head.version == ask.submit.version + 1;
    let ours = |head: &&Head| matches!(head.state(), State::Dispatched | State::Queued | State::Scheduled);
    moved.head.as_ref().filter(|_| again && moved.outcome == Outcome::Stale).filter(next).filter(ours)
}

/// Creates jobs again that Redis has forgotten: their submits came too late for the loop `reread`. Returns all places
/// if this failed; a repeat skips the jobs that were created meanwhile.
async fn make_again(context: &Context, forgotten: Vec<(usize, Submit)>) -> Vec<usize> {
    if forgotten.is_empty() {
        return Vec::new();
    }
    let (places, submits): (Vec<usize>, Vec<Submit>) = forgotten.into_iter().unzip();
    let done = context.flow.recreate(&submits).await;
    if done.made > 0 {
        count(Counter::Reconciled, &[("action", "recreate")], done.made);
        tracing::warn!(event = "recreated", n = done.made, "Redis had lost submitted jobs; created them again");
    }
    if done.fault.is_some() { places } else { Vec::new() }
}

/// Publishes offers. Returns the places of those that are not on the stream.
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

/// Brings forward the checks of jobs that have ended meanwhile. A slow replica that repeats another one's step may
/// forward the home of a job whose end has already removed it; this creates the home again, due in a quarter of an
/// hour. Jobs that have ended by now are checked now; jobs that end later remove their home later.
async fn look_at_ended(context: &Context, jobs: Vec<JobId>) {
    if jobs.is_empty() {
        return;
    }
    let records = context.store().read(&jobs, Fields::NONE).await;
    let over = |record: &Option<Record>| record.as_ref().is_none_or(|record| record.head.state().is_end());
    let ended = jobs.into_iter().zip(records).filter(|(_, record)| record.as_ref().is_ok_and(over));
    let due: Vec<_> = ended.map(|(job, _)| (job, Duration::ZERO)).collect();
    // If the store does not answer, the check comes when the home is due.
    let _ = context.forward(&due).await;
}

/// Forwards homes. Returns all places if that failed.
async fn forward(context: &Context, homes: Vec<(usize, JobId, Duration)>) -> Vec<usize> {
    let due: Vec<_> = homes.iter().map(|(_, id, after)| (*id, *after)).collect();
    match context.forward(&due).await {
        Ok(()) => Vec::new(),
        Err(_) => homes.into_iter().map(|(place, ..)| place).collect(),
    }
}
