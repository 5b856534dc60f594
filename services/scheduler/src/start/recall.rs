//! Takes back offers of topics that were paused or limited after the offer, when a worker asks to start them.
//!
//! Promises: as soon as this replica knows of a pause, no job of that topic starts; as soon as it knows of a
//! `concurrency.max`, no job starts that was offered without a place. Such an offer's job becomes pending again and
//! goes into the backlog like a new job, at its old position, because jobs are ordered by age. A worker that already
//! holds the job gets `go` again. Leaves to others: the topic's settings (`rules`), holding (`dispatch`), places
//! (`slots`).
//!
//! Order: record `pending` → submit published → answer to the worker that the offer is gone. If the replica dies on the
//! way, the job is pending and its check publishes the submit.

use std::sync::Arc;

use muster_domain::{Event, JobId};
use muster_store::{Fields, Record, SlotRef, Step};

use super::request::{Read, Refused};
use crate::{context::Context, route_state::RouteState, slots};

/// Takes back offers that must not start; costs nothing if no topic is paused or limited.
pub(super) async fn in_vain(context: &Arc<Context>, reads: &mut [Read]) {
    let suspect = |read: &&mut Read| {
        let held = |route: &RouteState| route.is_paused() || route.max().is_some();
        !read.ask.undecodable && read.job.as_ref().is_some_and(|(_, route)| held(route))
    };
    let suspects: Vec<&mut Read> = reads.iter_mut().filter(suspect).collect();
    if !suspects.is_empty() {
        let held = without_place(context, suspects).await;
        take_back(context, held).await;
    }
}

/// Of paused topics all requests; of others those whose offer was made without a place.
async fn without_place<'a>(context: &Context, suspects: Vec<&'a mut Read>) -> Vec<&'a mut Read> {
    let is_paused = |read: &Read| read.job.as_ref().is_some_and(|(_, route)| route.is_paused());
    let (mut held, limited): (Vec<_>, Vec<_>) = suspects.into_iter().partition(|read| is_paused(read));
    if limited.is_empty() {
        return held;
    }
    let ids: Vec<JobId> = limited.iter().filter_map(|read| Some(read.job.as_ref()?.0)).collect();
    for (read, record) in limited.into_iter().zip(context.store().read(&ids, Fields::NONE).await) {
        match record {
            Ok(Some(record)) if !record.placed => held.push(read),
            Err(fault) if !fault.is_unreadable() => read.refused = Some(Refused::Unknown),
            // The start itself answers for an unreadable record.
            _ => {}
        }
    }
    held
}

async fn take_back(context: &Context, mut held: Vec<&mut Read>) {
    if held.is_empty() {
        return;
    }
    let ids: Vec<JobId> = held.iter().filter_map(|read| Some(read.job.as_ref()?.0)).collect();
    let steps = held.iter().zip(&ids).map(|(read, id)| Step::new(*id, Event::Recall, read.ask.version.into()));
    let steps = steps.collect();
    // Spec and payload never change, so they may be read while the job moves.
    let (moved, records) = tokio::join!(context.store().apply(steps), context.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("recall.after_apply");
    let (mut back, mut homes, mut freed) = (Vec::new(), Vec::new(), Vec::new());
    for (((read, id), moved), record) in held.iter_mut().zip(&ids).zip(moved).zip(records) {
        let moved = match moved {
            Ok(moved) => moved,
            Err(fault) => {
                read.refused = Some(if fault.is_unreadable() { Refused::Recalled } else { Refused::Unknown });
                continue;
            }
        };
        // The offer is out of date. The job may be running at the worker that asks; the start finds out.
        let Some(head) = moved.done() else { continue };
        read.refused = Some(Refused::Recalled);
        homes.extend(moved.forward.map(|after| (*id, after)));
        if let Ok(Some(record)) = record {
            // Read together with the step: a record with a later version may name other slots.
            if record.head.version <= head.version {
                freed.extend(SlotRef::of(&record));
            }
            back.push(Record { head: head.clone(), ..record });
        }
    }
    // If the bus or the store fails, the check of the pending job finds it.
    let _ = context.forward(&homes).await;
    context.flow.publish_submits(back).await;
    if !freed.is_empty() {
        muster_flow::failpoint!("recall.after_submit");
    }
    slots::free(context, freed).await;
}
