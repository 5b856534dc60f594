//! Asks deciders about the jobs of their topics, under the job's lock, and then decides the jobs as usual.
//!
//! Knows: which jobs have an open question. Promises: an open question delays no other job, so a submit is done as soon
//! as its question waits here. One of all replicas asks, while it holds `muster:scheduler:job:<id>`. A question without
//! an answer is asked again until there is an answer or the job has moved on. The lock only saves work: the event that
//! follows compares the version, so if two replicas ask, only one of them moves the job.
//!
//! The job's home covers losses: the job is still `pending`, and its home is kept so near that a check comes soon after
//! a lock is no longer renewed. A graceful stop does not wait for that: it publishes unanswered submits again. Leaves
//! to others: the question and its recipient (`counsel`), the open questions (`questions`), and everything after a yes
//! (`dispatch`).

use std::{sync::Arc, time::Duration};

use muster_bus::subjects;
use muster_domain::{Event, JobError, JobErrorCode, JobId, Outcome, State};
use muster_flow::End;
use muster_store::{DECIDING_TTL, Fields, Held, LeaseKeeper, Lock, Step};
use muster_telemetry::{Counter, Emit, count, events::Unanswered, spans};
use muster_wire::{
    Body, job_id,
    v1::{Submit, SubmitGroup},
};
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    counsel::Advice,
    dispatch::go_ahead,
    events,
    questions::{Asked, Questions},
};

/// Most questions open at one time.
const AT_ONCE: usize = 256;
/// Pause before an unanswered question is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Time from the last renewal of the lock to the job's check: just after the lock has expired.
const LOOK: Duration = DECIDING_TTL.saturating_add(Duration::from_secs(1));

/// Asks until stopped, then publishes again the submits whose questions have not begun.
pub(crate) async fn run(context: &Arc<Context>, asked: &mut Asked, stop: &CancellationToken) {
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
        let (context_of_task, stopping) = (context.clone(), stop.clone());
        context.in_flight.spawn("consult", async move {
            consult(&context_of_task, submit, &stopping).await;
            drop(turn);
        });
    }
    let mut left = Vec::new();
    while let Ok(submit) = asked.try_recv() {
        left.push(submit);
    }
    publish_again(context, left).await;
}

/// Handles one question, from the lock to the effects of the answer.
async fn consult(context: &Context, submit: Submit, stop: &CancellationToken) {
    let (Some(questions), Ok(id)) = (&context.questions, job_id(&submit.job_id)) else { return };
    let keeper = LeaseKeeper::new(context.store().clone(), Lock::deciding(id), questions.replica(), DECIDING_TTL);
    let held = tokio::select! {
        held = keeper.hold(settle_question(context, questions, id, &submit)) => Some(held),
        () = stop.cancelled() => None,
    };
    if held.is_none() {
        // If the release fails, the lock expires by itself.
        let _ = keeper.release().await;
        publish_again(context, vec![submit]).await;
    }
    if held == Some(Held::Elsewhere) {
        count(Counter::Decisions, &[("outcome", "elsewhere")], 1);
    }
    questions.close(id);
}

/// Asks until there is an answer and carries it out, or until the job has moved on.
async fn settle_question(context: &Context, questions: &Questions, id: JobId, submit: &Submit) {
    muster_flow::failpoint!("consult.locked");
    let asking = async {
        while waits(context, id, submit.version).await {
            match questions.counsel().ask(submit).await {
                Ok(advice) => return Some(advice),
                Err(detail) => Unanswered { job: &id, detail: &detail }.emit(),
            }
            sleep(ASK_AGAIN.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        }
        None
    };
    let advice = tokio::select! {
        advice = asking => advice,
        never = keep_home_near(context, id) => match never {},
    };
    muster_flow::failpoint!("consult.answered");
    match advice {
        None => {}
        Some(Advice::Allow) => {
            count(Counter::Decisions, &[("outcome", "allowed")], 1);
            // If this fails, the job's home finds the job.
            go_ahead(context, vec![submit.clone()], true).await;
        }
        Some(Advice::Deny(reason)) => {
            count(Counter::Decisions, &[("outcome", "denied")], 1);
            deny(context, id, submit, &reason).await;
        }
    }
}

/// Whether the job still waits for this decision. True if Redis does not answer: the event that follows compares the
/// version.
async fn waits(context: &Context, id: JobId, version: u32) -> bool {
    match context.store().read_one(id, Fields::NONE).await {
        Ok(Some(record)) => record.head.state() == State::Pending && record.head.version == version,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Forwards the home as long as the question is open, so that another replica asks soon after this one has died.
async fn keep_home_near(context: &Context, id: JobId) -> std::convert::Infallible {
    loop {
        sleep(DECIDING_TTL / 3).await;
        // If one forward fails, the next one makes up for it.
        let _ = context.forward(&[(id, LOOK)]).await;
    }
}

async fn deny(context: &Context, id: JobId, submit: &Submit, reason: &str) {
    let error = JobError::new(JobErrorCode::Denied.as_str(), reason, false);
    let step =
        Step { note: reason.to_owned(), error: Some(error), ..Step::new(id, Event::Deny, submit.version.into()) };
    let Ok(moved) = context.store().apply_one(step).await else { return };
    let names = submit.spec.as_ref().and_then(|spec| context.routes.route(&spec.tenant, &spec.topic).ok());
    let (Some(head), Some(route)) = (moved.done(), names) else { return };
    let end = End::new(id, (&route.tenant, &route.topic), head, moved.outcome == Outcome::Applied)
        .error(Some(JobErrorCode::Denied.as_str().to_owned()))
        .run(events::run_of(submit))
        .trace(submit.spec.as_ref().and_then(|spec| spans::carried(&spec.traceparent)));
    muster_flow::failpoint!("deny.after_apply");
    // If this fails, the job's check finishes it.
    let _ = context.flow.finish(vec![end]).await;
}

async fn publish_again(context: &Context, items: Vec<Submit>) {
    if !items.is_empty() {
        let _ = context.bus().publish(&subjects::submit(), None, None, Body::Submit(SubmitGroup { items })).await;
    }
}
