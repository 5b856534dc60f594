//! Jobs that somebody outside has a say in: asked about under the job's lock, then decided as usual.
//!
//! Knows: who is being asked about what. Promises: nobody's question holds up a neighbour's job, so
//! the submit is done with as soon as its question waits here; of all replicas one asks, while it
//! holds `muster:scheduler:job:<id>`; a question without an answer is asked again until there is one
//! or the job has moved on. The lock only saves work. What counts is the event that follows, which
//! compares the version: if two ask, one of them moves the job.
//!
//! Whatever is lost on the way is found by the job's home: the job is still `pending`, and its home
//! is kept so near that a look comes soon after a lock that nobody renews. A graceful stop does not
//! leave it at that: what was not answered is published again. Leaves to others: what to ask and
//! whom (`outside`, behind `Counsel`), and everything after a yes (`dispatch`).

mod outside;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_bus::subjects;
use muster_domain::{Event, JobError, JobErrorCode, JobId, Outcome, State, Time};
use muster_flow::End;
use muster_store::{DECIDING_TTL, Fields, Held, LeaseKeeper, Lock, Step};
use muster_telemetry::{Counter, Emit, count, events::Unanswered, spans};
use muster_wire::{
    Body, job_id,
    v1::{Submit, SubmitGroup},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{Advice, Counsel},
    desk::Desk,
    dispatch::go_ahead,
};
pub(crate) use outside::Outside;

/// Questions under way at one time.
const AT_ONCE: usize = 256;
/// Questions that may wait for their turn; more come again with their delivery.
const WAITING: usize = 4_096;
/// Before a question that got no answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// A look comes so long after the lock was last renewed: just after it has run out.
const LOOK: Duration = DECIDING_TTL.saturating_add(Duration::from_secs(1));

/// Questions on their way to whoever asks them.
pub(crate) type Asked = mpsc::Receiver<Submit>;

/// Who has to be asked, and about what they are being asked.
pub(crate) struct Consults {
    counsel: Box<dyn Counsel>,
    replica: String,
    /// Jobs whose question waits or is under way here.
    open: Mutex<HashSet<JobId>>,
    asks: mpsc::Sender<Submit>,
}

impl Consults {
    /// Nobody is asked yet. `replica` is who operators see in the locks.
    pub(crate) fn new(counsel: Box<dyn Counsel>, replica: &str) -> (Consults, Asked) {
        let (asks, asked) = mpsc::channel(WAITING);
        (Consults { counsel, replica: replica.to_owned(), open: Mutex::default(), asks }, asked)
    }

    /// Takes out what has to be asked about and goes ahead with the rest. As `Work::handle`.
    pub(crate) async fn sort_out(&self, desk: &Desk, items: Vec<Submit>, again: bool) -> Vec<usize> {
        let (mut rest, mut places, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let now = desk.store().now();
        for (place, submit) in items.into_iter().enumerate() {
            // What waits for its time is asked about when that has come.
            let ahead = Time(submit.run_at).some().is_some_and(|at| !at.reached(now));
            match job_id(&submit.job_id) {
                Ok(id) if !ahead && self.counsel.concerns(&submit) => {
                    if !self.hand_over(id, submit) {
                        failed.push(place);
                    }
                }
                _ => {
                    rest.push(submit);
                    places.push(place);
                }
            }
        }
        if !rest.is_empty() {
            let undone = go_ahead(desk, rest, again).await;
            failed.extend(undone.into_iter().map(|nth| places[nth]));
        }
        failed
    }

    /// False if too many wait already.
    fn hand_over(&self, id: JobId, submit: Submit) -> bool {
        // A look may publish a submit again while its question is still under way.
        if !self.open().insert(id) {
            return true;
        }
        let taken = self.asks.try_send(submit).is_ok();
        if !taken {
            self.open().remove(&id);
        }
        taken
    }

    fn open(&self) -> MutexGuard<'_, HashSet<JobId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks until stopped; then publishes again what was not begun.
pub(crate) async fn run(desk: &Arc<Desk>, asked: &mut Asked, stop: &CancellationToken) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let next = async {
            let turn = turns.clone().acquire_owned().await.ok()?;
            asked.recv().await.map(|submit| (turn, submit))
        };
        let next = tokio::select! {
            () = stop.cancelled() => None,
            next = next => next,
        };
        let Some((turn, submit)) = next else { break };
        let (desk_of_task, stopping) = (desk.clone(), stop.clone());
        desk.in_flight.spawn("consult", async move {
            consult(&desk_of_task, submit, &stopping).await;
            drop(turn);
        });
    }
    let mut left = Vec::new();
    while let Ok(submit) = asked.try_recv() {
        left.push(submit);
    }
    publish_again(desk, left).await;
}

/// One question, from the lock to what follows from the answer.
async fn consult(desk: &Desk, submit: Submit, stop: &CancellationToken) {
    let (Some(consults), Ok(id)) = (&desk.consults, job_id(&submit.job_id)) else { return };
    let keeper = LeaseKeeper::new(desk.store().clone(), Lock::deciding(id), &consults.replica, DECIDING_TTL);
    let held = tokio::select! {
        held = keeper.hold(settle_question(desk, consults, id, &submit)) => Some(held),
        () = stop.cancelled() => None,
    };
    if held.is_none() {
        // If it cannot be given up it runs out by itself.
        let _ = keeper.release().await;
        publish_again(desk, vec![submit]).await;
    }
    if held == Some(Held::Elsewhere) {
        count(Counter::Decisions, &[("outcome", "elsewhere")], 1);
    }
    consults.open().remove(&id);
}

/// Asks until there is an answer and does what it says, or until the job has moved on.
async fn settle_question(desk: &Desk, consults: &Consults, id: JobId, submit: &Submit) {
    muster_flow::failpoint!("consult.locked");
    let asking = async {
        while waits(desk, id, submit.version).await {
            match consults.counsel.ask(submit).await {
                Ok(advice) => return Some(advice),
                Err(detail) => Unanswered { job: &id, detail: &detail }.emit(),
            }
            sleep(ASK_AGAIN.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        }
        None
    };
    let advice = tokio::select! {
        advice = asking => advice,
        never = keep_home_near(desk, id) => match never {},
    };
    muster_flow::failpoint!("consult.answered");
    match advice {
        None => {}
        Some(Advice::Allow) => {
            count(Counter::Decisions, &[("outcome", "allowed")], 1);
            // One that could not be done is found by its home.
            go_ahead(desk, vec![submit.clone()], true).await;
        }
        Some(Advice::Deny(reason)) => {
            count(Counter::Decisions, &[("outcome", "denied")], 1);
            deny(desk, id, submit, &reason).await;
        }
    }
}

/// Whether the job still waits for this decision. If Redis does not say, it is taken to: the event
/// that follows compares the version.
async fn waits(desk: &Desk, id: JobId, version: u32) -> bool {
    match desk.store().read_one(id, Fields::NONE).await {
        Ok(Some(record)) => record.head.state() == State::Pending && record.head.version == version,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// As long as the question lasts, so that somebody asks again soon after this replica has died.
async fn keep_home_near(desk: &Desk, id: JobId) -> std::convert::Infallible {
    loop {
        sleep(DECIDING_TTL / 3).await;
        // One that is missed is made up for by the next.
        let _ = desk.forward(&[(id, LOOK)]).await;
    }
}

async fn deny(desk: &Desk, id: JobId, submit: &Submit, reason: &str) {
    let error = JobError::new(JobErrorCode::Denied.as_str(), reason, false);
    let step =
        Step { note: reason.to_owned(), error: Some(error), ..Step::new(id, Event::Deny, submit.version.into()) };
    let Ok(moved) = desk.store().apply_one(step).await else { return };
    let names = submit.spec.as_ref().and_then(|spec| desk.lanes.lane(&spec.tenant, &spec.topic).ok());
    let (Some(head), Some(lane)) = (moved.done(), names) else { return };
    let end = End {
        id,
        tenant: lane.tenant.clone(),
        topic: lane.topic.clone(),
        head: head.clone(),
        error_code: Some(JobErrorCode::Denied.as_str().to_owned()),
        first: moved.outcome == Outcome::Applied,
        tell: None,
        slots: Vec::new(),
        entry: None,
        trace: submit.spec.as_ref().and_then(|spec| spans::carried(&spec.traceparent)),
    };
    muster_flow::failpoint!("deny.after_apply");
    // What could not be finished is finished by the look.
    let _ = desk.flow.finish(vec![end]).await;
}

async fn publish_again(desk: &Desk, items: Vec<Submit>) {
    if !items.is_empty() {
        let _ = desk.bus().publish(&subjects::submit(), None, None, Body::Submit(SubmitGroup { items })).await;
    }
}
