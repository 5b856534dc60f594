//! Workers that speak HTTP: this gateway is their proxy on the bus.
//!
//! Knows: who waits for which topic, and how calls become messages. Promises: the gateway never
//! starts, extends or settles anything in Redis itself; the same request gets the same jobs; an
//! offer that nobody here wants goes back at once. A worker's calls may each come to another
//! gateway: nothing here is needed by the next call. Leaves to others: judging attempts (the
//! scheduler), reading requests (`routes/workers`).

mod beat;
mod extend;
mod lease;
mod pull;
mod settle;
mod told;

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::BoxFuture;
use muster_bus::{BusError, GroupPublisher, GroupSettings, subjects};
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
pub(crate) use settle::{MOST_RESULT, PREVIEW, Report, Said};

/// Results that may wait for the bus.
const RESULTS_WAITING: usize = 4096;
/// How long one publish of results may take; it is repeated anyway.
const RESULTS_LIMIT: Duration = Duration::from_secs(2);

/// Everything that HTTP workers need.
pub(crate) struct Workers {
    flow: Flow,
    pullers: Pullers,
    beats: Beats,
    told: Told,
    results: GroupPublisher<v1::Result>,
    stop: CancellationToken,
}

impl Workers {
    /// `stop` ends long polls; `tasks` runs the pullers and is drained before the HTTP port,
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

    /// The jobs that these ids name, as far as they are the caller's. Others are not there.
    async fn theirs(&self, caller: &Caller, ids: &[JobId]) -> Result<BTreeMap<JobId, Record>, Problem> {
        let mut found = BTreeMap::new();
        for record in self.flow.store.read(ids, Fields::NONE).await {
            // Of one that cannot be read nobody knows whose it is.
            let Some(record) = readable(record)? else { continue };
            let visible = !record.deleted && record.spec.tenant == caller.tenant;
            if visible && caller.may_touch(&record.spec.topic).is_ok() {
                found.insert(record.id, record);
            }
        }
        Ok(found)
    }

    /// Asks the schedulers, again and again within the limit, because any of them may be on its
    /// way out. Asking twice is harmless.
    async fn ask(&self, subject: &muster_bus::Subject, body: &Body, limit: Duration) -> Result<Body, Problem> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            match self.flow.bus.request(subject, body.clone(), ASK_LIMIT.min(limit)).await {
                Ok(answer) => return Ok(answer),
                Err(fault) if !fault.is_transient() => return Err(strange(&fault)),
                Err(_) if tokio::time::Instant::now() + ASK_PAUSE >= deadline => return Err(Problem::bus_away()),
                Err(_) => tokio::time::sleep(ASK_PAUSE).await,
            }
        }
    }
}

/// The record, if there is one that can be read: a damaged one is its own job's fault.
fn readable(record: Result<Option<Record>, StoreError>) -> Result<Option<Record>, StoreError> {
    match record {
        Err(fault) if fault.is_unreadable() => Ok(None),
        record => record,
    }
}

/// How long one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Between two questions.
const ASK_PAUSE: Duration = Duration::from_millis(100);

fn strange(fault: &BusError) -> Problem {
    tracing::error!(event = "bus_fault", detail = %fault, "the bus refused a question");
    Problem::new(muster_domain::ProblemCode::Internal, "the bus refused a question; the log has the reason")
}

/// How an attempt stands, as its worker hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) job: JobId,
    pub(crate) standing: v1::Standing,
    /// What remains of its lease, where it has one.
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
