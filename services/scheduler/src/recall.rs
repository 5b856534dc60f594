//! Offers that a pause met on the bus: taken back when a worker asks to start them.
//!
//! Promises: from when this replica knows of a pause, no job of that topic starts; what was
//! offered before becomes pending again and goes the way of every newcomer into the backlog, in
//! its old place, for it is placed by its age. A worker that holds a job already hears so again.
//! Leaves to others: what a pause is (`rules`), holding (`dispatch`).
//!
//! Order: record `pending` → submit published → worker told that the offer is gone. Who dies on
//! the way leaves a pending job, which the look publishes.

use std::sync::Arc;

use muster_domain::{Event, JobId};
use muster_store::{Fields, Record, Step};

use crate::{
    desk::Desk,
    start::{Read, Refused},
};

/// Takes back what is asked for of paused topics; costs nothing where none is.
pub(crate) async fn paused(desk: &Arc<Desk>, reads: &mut [Read]) {
    let asked_in_vain =
        |read: &&mut Read| !read.ask.undecodable && read.job.as_ref().is_some_and(|(_, lane)| lane.is_paused());
    let mut held: Vec<&mut Read> = reads.iter_mut().filter(asked_in_vain).collect();
    if held.is_empty() {
        return;
    }
    let ids: Vec<JobId> = held.iter().filter_map(|read| Some(read.job.as_ref()?.0)).collect();
    let steps = held.iter().zip(&ids).map(|(read, id)| Step::new(*id, Event::Recall, read.ask.version.into()));
    let steps = steps.collect();
    // Spec and payload never change, so they may be read while the job moves.
    let (moved, records) = tokio::join!(desk.store().apply(steps), desk.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("recall.after_apply");
    let (mut back, mut homes) = (Vec::new(), Vec::new());
    for (((read, id), moved), record) in held.iter_mut().zip(&ids).zip(moved).zip(records) {
        let Ok(moved) = moved else {
            read.refused = Some(Refused::Unknown);
            continue;
        };
        // Not that offer's any more: it may be running with whoever asks, which a start tells.
        let Some(head) = moved.done() else { continue };
        read.refused = Some(Refused::Recalled);
        homes.extend(moved.forward.map(|after| (*id, after)));
        if let Ok(Some(record)) = record {
            back.push(Record { head: head.clone(), ..record });
        }
    }
    // What the bus or the store does not take is found by the look at a pending job.
    let _ = desk.forward(&homes).await;
    desk.flow.publish_submits(back).await;
}
