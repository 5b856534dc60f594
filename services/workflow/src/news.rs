//! Takes the ends of jobs of the runs in one shard from the bus, while this replica owns the shard.
//!
//! Promises: all ends of one run in a batch are handled in one turn. A delivery is acked after its runs were saved and
//! what they ask for was carried out; a run that failed has its delivery delivered again. Two replicas that believe to
//! own a shard handle some runs twice, which is harmless.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use muster_bus::{ConsumerSpec, Delivery, PROGRESS};
use muster_chassis::Part;
use muster_domain::{JobId, RunId};
use muster_telemetry::{Emit, events::Undecodable};
use muster_wire::{Body, job_id};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    turn::{Cause, take_turn},
};

/// Most deliveries fetched at once.
const FETCH: usize = 64;
/// How long a pull waits for news.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a shard that is still owned is checked.
const LOOK: Duration = Duration::from_secs(1);
/// Most batches of one shard that are handled at the same time.
const BATCHES: usize = 8;
/// Pause before a delivery comes again whose run failed.
const COME_AGAIN: Duration = Duration::from_millis(500);

/// Whether the consumers of all owned shards answer.
#[derive(Clone)]
pub(crate) struct Consumers {
    part: Part,
    silent: Arc<Mutex<BTreeMap<u8, String>>>,
}

impl Consumers {
    /// Ready until a consumer does not answer.
    pub(crate) fn new(part: Part) -> Consumers {
        part.ready();
        Consumers { part, silent: Arc::default() }
    }

    fn tell(&self, shard: u8, heard: Result<(), String>) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match heard {
            Ok(()) if silent.remove(&shard).is_none() => return,
            Ok(()) => {}
            Err(detail) => drop(silent.insert(shard, detail)),
        }
        match silent.iter().next() {
            None => self.part.ready(),
            Some((shard, detail)) => self.part.not_ready(format!("ends of jobs of shard {shard:x}: {detail}")),
        }
    }
}

/// Takes the news of one shard until stopped.
pub(crate) async fn take(
    context: &Arc<Context>,
    shard: u8,
    ready: &Consumers,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = context.owned.gained(shard) => {}
        }
        let opened = async {
            context.runs.flow.bus.connected().await;
            context.runs.flow.bus.consumer(ConsumerSpec::job_done(shard)).await
        };
        let consumer = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            consumer = opened => consumer?,
        };
        let turns = Arc::new(Semaphore::new(BATCHES));
        while context.owned.has(shard) && !stop.is_cancelled() {
            let turn = turns.clone().acquire_owned().await?;
            let fetched = tokio::select! {
                () = stop.cancelled() => break,
                () = lost(context, shard) => break,
                fetched = consumer.fetch(FETCH, PATIENCE) => fetched,
            };
            let deliveries = match fetched {
                Ok(deliveries) => deliveries,
                Err(fault) => {
                    ready.tell(shard, Err(fault.to_string()));
                    continue;
                }
            };
            ready.tell(shard, Ok(()));
            if deliveries.is_empty() {
                continue;
            }
            let context_of_batch = context.clone();
            context.in_flight.spawn("ends of jobs", async move {
                handle(&context_of_batch, deliveries).await;
                drop(turn);
            });
        }
        consumer.close().await;
        ready.tell(shard, Ok(()));
    }
}

async fn lost(context: &Context, shard: u8) {
    while context.owned.has(shard) {
        tokio::time::sleep(LOOK).await;
    }
}

/// The runs of a delivery, and their jobs that have ended; none if it is no such message.
fn runs_of(delivery: &Delivery) -> Option<BTreeMap<RunId, Vec<JobId>>> {
    let Body::JobDone(group) = &delivery.body else { return None };
    let mut runs: BTreeMap<RunId, Vec<JobId>> = BTreeMap::new();
    for item in &group.items {
        if let (Some(run), Ok(job)) = (RunId::from_slice(&item.run_id), job_id(&item.job_id)) {
            runs.entry(run).or_default().push(job);
        }
    }
    Some(runs)
}

async fn handle(context: &Arc<Context>, deliveries: Vec<Delivery>) {
    let mut jobs: BTreeMap<RunId, Vec<JobId>> = BTreeMap::new();
    let mut runs_by_delivery: Vec<BTreeSet<RunId>> = Vec::new();
    for delivery in &deliveries {
        let runs = runs_of(delivery).unwrap_or_default();
        runs_by_delivery.push(runs.keys().copied().collect());
        for (run, ended) in runs {
            jobs.entry(run).or_default().extend(ended);
        }
    }
    let turns = jobs.into_iter().map(|(run, ended)| async move {
        let done = take_turn(context, run, Cause::Ended(ended)).await;
        (run, done.is_ok())
    });
    let keep = async {
        loop {
            tokio::time::sleep(PROGRESS).await;
            for delivery in &deliveries {
                delivery.in_progress().await;
            }
        }
    };
    let failed: BTreeSet<RunId> = tokio::select! {
        biased;
        done = join_all(turns) => done.into_iter().filter(|(_, fine)| !fine).map(|(run, _)| run).collect(),
        () = keep => BTreeSet::new(),
    };
    muster_flow::failpoint!("run.news.before_ack");
    for (delivery, runs) in deliveries.iter().zip(runs_by_delivery) {
        if runs_of(delivery).is_none() {
            Undecodable { subject: "ends of jobs", detail: "wrong kind of message for this subject" }.emit();
            delivery.receipt.reject("wrong kind of message for this subject").await;
        } else if runs.is_disjoint(&failed) {
            delivery.ack().await;
        } else {
            delivery.nak(COME_AGAIN).await;
        }
    }
}
