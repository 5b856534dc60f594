//! Keeps leases alive, and passes progress on.
//!
//! Promises: one pipeline per Redis node for all waiting requests. The answer says for each attempt whether the worker
//! still holds it, or `again` if the store did not answer in time. A Redis node that does not answer keeps no lease on
//! other nodes from being extended. Leaves to others: ending attempts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use muster_bus::{Received, subjects};
use muster_domain::{JobId, Progress};
use muster_store::{Extended, Extension, NodeAddr, StoreError};
use muster_telemetry::{Emit, events::StaleWrite};
use muster_wire::{
    Body, job_id, standing_of,
    v1::{ExtendAnswer, ExtendAsk, ExtendReply, ProgressNotice, Standing},
};

use crate::{context::Context, start::lease_of};

/// How long to wait for a node. A worker with a short lease asks again within a second.
const NODE_ANSWERS: Duration = Duration::from_millis(500);

/// Answers a group of requests with one pipeline per node.
pub(crate) async fn answer(context: Arc<Context>, requests: Vec<Received>) {
    let (mut asks, mut items, mut replies) = (Vec::new(), Vec::new(), Vec::new());
    for request in requests {
        let (_, body, reply) = request.into_parts();
        // A request with another body on this subject gets no answer.
        let Body::Extend(request) = body else { continue };
        replies.push((reply, request.items.len()));
        for ask in request.items {
            let id = job_id(&ask.job_id).ok();
            if let Some(job) = id {
                let progress = ask.progress.clone().map(Progress::from);
                let lease = lease_of(&context, &ask.tenant, &ask.topic, ask.lease_ms);
                items.push(Extension { job, fence: ask.fence, lease, progress });
            }
            asks.push((id, ask));
        }
    }
    let mut extended = extend(&context, items).await.into_iter();
    let (mut answers, mut notices) = (Vec::with_capacity(asks.len()), Vec::new());
    for (id, ask) in asks {
        let answer = match id.and_then(|id| extended.next().map(|done| (id, done))) {
            None => told(&ask, Standing::UnknownJob, 0),
            Some((id, done)) => stands(id, &ask, done),
        };
        if answer.standing() == Standing::Ok && answer.lease_us > 0 {
            notices.extend(progress(ask));
        }
        answers.push(answer);
    }
    let mut answers = answers.into_iter();
    for (reply, n) in replies {
        let items = answers.by_ref().take(n).collect();
        // If the answer is lost, the worker asks again.
        let _ = reply.send(Body::Extended(ExtendReply { items })).await;
    }
    for notice in notices {
        // If this is lost, watchers see the stored progress when they read.
        let _ = context.bus().broadcast(&subjects::progress(), Body::Progress(notice)).await;
    }
}

/// Extends the leases of each node by a separate call.
async fn extend(context: &Context, items: Vec<Extension>) -> Vec<Result<Extended, StoreError>> {
    let mut nodes: BTreeMap<Option<NodeAddr>, Vec<(usize, Extension)>> = BTreeMap::new();
    let count = items.len();
    for (place, item) in items.into_iter().enumerate() {
        nodes.entry(context.store().node_of(item.job)).or_default().push((place, item));
    }
    let calls = nodes.into_values().map(async |items| {
        let (places, items): (Vec<usize>, Vec<Extension>) = items.into_iter().unzip();
        let done = tokio::time::timeout(NODE_ANSWERS, context.store().extend(items)).await;
        (places, done.unwrap_or_default())
    });
    let late = || Err(StoreError::Unavailable { detail: "the node did not answer in time".to_owned() });
    let mut extended: Vec<_> = (0..count).map(|_| late()).collect();
    for (places, done) in join_all(calls).await {
        for (place, done) in places.into_iter().zip(done) {
            extended[place] = done;
        }
    }
    extended
}

fn told(ask: &ExtendAsk, standing: Standing, lease_us: u64) -> ExtendAnswer {
    ExtendAnswer { job_id: ask.job_id.clone(), standing: standing.into(), lease_us }
}

fn stands(id: JobId, ask: &ExtendAsk, done: Result<Extended, StoreError>) -> ExtendAnswer {
    match done {
        Err(fault) if fault.is_unreadable() => told(ask, Standing::UnknownJob, 0),
        Err(_) => told(ask, Standing::Again, 0),
        Ok(Extended { held: true, remaining, .. }) => {
            told(ask, Standing::Ok, u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX))
        }
        Ok(Extended { head: None, .. }) => told(ask, Standing::UnknownJob, 0),
        Ok(Extended { head: Some(head), .. }) => {
            let standing = standing_of(&head, ask.fence);
            if standing != Standing::Ok {
                StaleWrite { event: "extend", job: &id }.emit();
            }
            told(ask, standing, 0)
        }
    }
}

fn progress(ask: ExtendAsk) -> Option<ProgressNotice> {
    let ExtendAsk { job_id, tenant, topic, progress, .. } = ask;
    progress.map(|progress| ProgressNotice { job_id, tenant, topic, progress: Some(progress) })
}
