//! The proxy on the bus for workers that speak HTTP.
//!
//! Knows: which calls wait for which topic, and how calls become messages. Promises: the gateway itself never starts,
//! extends or settles an attempt in Redis; a repeated request gets the same jobs; an offer that no call here wants
//! goes back at once. Each call of a worker may go to another gateway: no call needs state of an earlier one here.
//! Leaves to others: judging attempts (the scheduler), reading requests (`routes/workers`).

mod beat;
mod extend;
mod lease;
mod pull;
mod settle;
mod told;

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::BoxFuture;
use muster_bus::{BusError, GroupPublisher, GroupSettings, Question, subjects};
use muster_chassis::Tasks;
use muster_domain::{JobId, Tenant, WorkerId};
use muster_flow::Flow;
use muster_store::{Fields, Record, StoreError};
use muster_wire::{Body, encoded_len, v1};
use tokio_util::sync::CancellationToken;

use crate::{auth::Caller, problem::Problem};
use beat::Beats;
use pull::Pullers;
use told::Told;

pub(crate) use extend::{Extend, Held};
pub(crate) use lease::{Lease, Leased};
pub(crate) use settle::{Report, Said};

/// The most results that may wait for the bus.
const RESULTS_WAITING: usize = 4096;
/// How long one publish of results may take. Results are published again anyway.
const RESULTS_LIMIT: Duration = Duration::from_secs(2);

/// The state of the proxy.
pub(crate) struct Workers {
    flow: Flow,
    pullers: Pullers,
    beats: Beats,
    told: Told,
    results: GroupPublisher<v1::Result>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts the proxy. `stop` ends long polls. `tasks` runs the pullers and is drained before the HTTP port;
    /// `publishing` carries results and acks and is drained after it.
    pub(crate) fn start(flow: &Flow, tasks: &Tasks, publishing: &Tasks, stop: CancellationToken) -> Workers {
        let settings = GroupSettings { limit: RESULTS_LIMIT, ..GroupSettings::bound(RESULTS_WAITING) };
        let spawn = |work: BoxFuture<'static, ()>| drop(publishing.spawn("results", work));
        let wrap = |items| Body::Result(v1::ResultGroup { items });
        let results = GroupPublisher::with(flow.bus.clone(), subjects::result(), &spawn, wrap, encoded_len, settings);
        let (closing, ended) = (results.clone(), publishing.stopping());
        publishing.spawn("results", async move {
            ended.cancelled().await;
            closing.close();
        });
        let pullers = Pullers::start(flow, tasks, publishing);
        Workers { flow: flow.clone(), pullers, beats: Beats::default(), told: Told::default(), results, stop }
    }

    /// The jobs with these ids that belong to the caller; others are left out. Also returns an error if some jobs
    /// could not be read: the other jobs need not wait for them.
    async fn theirs(&self, caller: &Caller, ids: &[JobId]) -> (BTreeMap<JobId, Record>, Option<Problem>) {
        let (mut found, mut away) = (BTreeMap::new(), None);
        for record in self.flow.store.read(ids, Fields::NONE).await {
            // The tenant of an unreadable job is unknown.
            let record = match readable(record) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(fault) => {
                    away = Some(Problem::from(fault));
                    continue;
                }
            };
            let visible = !record.deleted && record.spec.tenant == caller.tenant;
            if visible && caller.may_touch(&record.spec.topic).is_ok() {
                found.insert(record.id, record);
            }
        }
        (found, away)
    }

    /// Asks the schedulers repeatedly within the limit, because the scheduler that gets the question may be shutting
    /// down. Asking twice is harmless.
    async fn ask(&self, question: Question, body: &Body, limit: Duration) -> Result<Body, Problem> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            match self.flow.bus.ask_schedulers(question, body.clone(), ASK_LIMIT.min(limit)).await {
                Ok(answer) => return Ok(answer),
                Err(fault) if !fault.is_transient() => return Err(strange(&fault)),
                Err(_) if tokio::time::Instant::now() + ASK_PAUSE >= deadline => return Err(Problem::bus_away()),
                Err(_) => tokio::time::sleep(ASK_PAUSE).await,
            }
        }
    }
}

/// The record, or `None` if it is missing or unreadable: a damaged record must affect only its own job.
fn readable(record: Result<Option<Record>, StoreError>) -> Result<Option<Record>, StoreError> {
    match record {
        Err(fault) if fault.is_unreadable() => Ok(None),
        record => record,
    }
}

/// How long one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two questions.
const ASK_PAUSE: Duration = Duration::from_millis(100);

fn strange(fault: &BusError) -> Problem {
    tracing::error!(event = "bus_fault", detail = %fault, "the bus refused a question");
    Problem::new(muster_domain::ProblemCode::Internal, "the bus refused a question; the log has the reason")
}

/// The state of an attempt, as the answer to its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) job: JobId,
    pub(crate) standing: v1::Standing,
    /// The remaining lease, if the worker still holds the job.
    pub(crate) lease: Option<Duration>,
}

impl Stands {
    /// `status` and `reason` of the contract.
    pub(crate) fn words(&self) -> (&'static str, Option<&'static str>) {
        match self.standing {
            v1::Standing::Ok => ("ok", None),
            v1::Standing::Lost => ("stale", Some("lost")),
            v1::Standing::Cancelled => ("stale", Some("cancelled")),
            v1::Standing::TimedOut => ("stale", Some("timed_out")),
            v1::Standing::UnknownJob | v1::Standing::Unspecified | v1::Standing::Again => ("invalid", Some("unknown")),
        }
    }
}

/// The worker's name on the bus.
pub(crate) fn on_bus(tenant: &Tenant, own: &WorkerId) -> WorkerId {
    WorkerId::http(tenant, own)
}

fn raw(id: JobId) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}
