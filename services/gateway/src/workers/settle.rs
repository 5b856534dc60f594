//! A worker reports the results of its jobs: they are published, and the call is answered when a scheduler has
//! settled them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered, select_all},
};
use muster_bus::subjects;
use muster_domain::{JobError, JobId, ProblemCode, Tenant, WorkerId};
use muster_store::Record;
use muster_wire::{Body, carried_of, job_id, run_bytes, v1};
use tokio::time::Instant;

use super::{Stands, Workers, on_bus, raw};
use crate::{
    auth::Caller,
    limits::{MOST_PREVIEW, MOST_RESULT},
    problem::Problem,
};

/// How often results that are not settled yet are published again.
const AGAIN: Duration = Duration::from_secs(1);
/// After this time the client is asked to repeat the call.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// The result of one attempt.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) job: JobId,
    pub(crate) fence: u64,
    pub(crate) said: Said,
}

/// How the attempt ended.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// Succeeded, with the result as verbatim JSON; empty if there is none.
    Done(Bytes),
    /// Succeeded, with a result that the worker truncated: its full size, and its beginning.
    Cut(u64, String),
    /// Failed, with the worker's own wish for the delay before the next attempt.
    Failed(JobError, Option<Duration>),
    /// Given back, to be offered again after this delay.
    Released(Duration),
}

impl Workers {
    /// Publishes the reports and waits until the schedulers have settled all of them.
    pub(crate) async fn settle(
        &self,
        caller: &Caller,
        worker: Option<&WorkerId>,
        reports: &[Report],
    ) -> Result<Vec<Stands>, Problem> {
        let ids: Vec<JobId> = reports.iter().map(|report| report.job).collect();
        let (known, away) = self.theirs(caller, &ids).await;
        if let Some(problem) = away {
            return Err(problem);
        }
        let mut open: BTreeMap<(JobId, u64), v1::Result> = BTreeMap::new();
        for report in reports {
            let Some(record) = known.get(&report.job) else { continue };
            let worker = worker.map_or_else(|| holder(record, &caller.tenant), |own| on_bus(&caller.tenant, own));
            // If one call reports an attempt twice, the first report counts.
            open.entry((report.job, report.fence)).or_insert_with(|| message(report, record, &worker));
        }
        let heard = self.settled(open).await?;
        let stands = |report: &Report| Stands {
            job: report.job,
            standing: heard.get(&(report.job, report.fence)).copied().unwrap_or(v1::Standing::UnknownJob),
            lease: None,
        };
        Ok(reports.iter().map(stands).collect())
    }

    /// Publishes the results, again every second, until all are settled.
    async fn settled(
        &self,
        mut open: BTreeMap<(JobId, u64), v1::Result>,
    ) -> Result<BTreeMap<(JobId, u64), v1::Standing>, Problem> {
        let mut heard = BTreeMap::new();
        if open.is_empty() {
            return Ok(heard);
        }
        let workers: BTreeSet<&String> = open.values().map(|result| &result.worker).collect();
        let mut ears = Vec::with_capacity(workers.len());
        for worker in workers {
            let subject = subjects::worker_ctl(&WorkerId::trusted(worker.clone()));
            let ear = self.flow.bus.subscribe(&subject, None).await.map_err(|_| Problem::bus_away())?;
            ears.push(Box::pin(stream::unfold(ear, |mut ear| async move { Some((ear.next().await?, ear)) })));
        }
        let mut notices = select_all(ears);
        let deadline = Instant::now() + SETTLED_WITHIN;
        let mut again = tokio::time::interval(AGAIN);
        let mut sending = FuturesUnordered::new();
        while !open.is_empty() {
            tokio::select! {
                Some(received) = notices.next() => {
                    let Body::Control(control) = received.body else { continue };
                    for settled in control.settled {
                        let Ok(job) = job_id(&settled.job_id) else { continue };
                        let standing = settled.standing();
                        if standing != v1::Standing::Again && open.remove(&(job, settled.fence)).is_some() {
                            heard.insert((job, settled.fence), standing);
                        }
                    }
                }
                // Results that could not be published are published again with the others.
                Some(_) = sending.next(), if !sending.is_empty() => {}
                _ = again.tick() => {
                    let items = open.values().cloned().collect();
                    sending.push(self.results.publish_all(items));
                }
                () = tokio::time::sleep_until(deadline) => {
                    let why = "not settled within ten seconds; repeat the call as it is";
                    return Err(Problem::new(ProblemCode::StoreUnavailable, why));
                }
            }
        }
        Ok(heard)
    }
}

/// The worker that probably holds the job, and so gets the notice, when the call does not name one.
fn holder(record: &Record, tenant: &Tenant) -> WorkerId {
    let lease = record.head.lease().map(|lease| &lease.worker);
    lease.or(record.head.last_worker.as_ref()).cloned().unwrap_or_else(|| on_bus(tenant, &WorkerId::trusted("unnamed")))
}

fn message(report: &Report, record: &Record, worker: &WorkerId) -> v1::Result {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let kind = match &report.said {
        Said::Done(json) => v1::result::Kind::Success(success(json)),
        Said::Cut(size, preview) => v1::result::Kind::Success(v1::Success {
            result: Bytes::new(),
            truncated: true,
            size: *size,
            preview: preview.clone(),
        }),
        Said::Failed(error, retry_in) => {
            v1::result::Kind::Failed(v1::Failed { failure: Some(error.into()), retry_in_ms: retry_in.map(millis) })
        }
        Said::Released(delay) => v1::result::Kind::Release(v1::Release { delay_ms: millis(*delay) }),
    };
    v1::Result {
        job_id: raw(report.job),
        fence: report.fence,
        worker: worker.to_string(),
        tenant: record.spec.tenant.to_string(),
        topic: record.spec.topic.to_string(),
        // The record names only the slots of its last attempt.
        slot: record.carried_slot().filter(|_| record.head.fence == report.fence),
        traceparent: record.spec.trace.filter(|t| t.is_sampled()).map(|t| t.to_string()).unwrap_or_default(),
        carried: carried_of(run_bytes(record.spec.run)),
        kind: Some(kind),
    }
}

/// The result in the message: complete, or its beginning and its size.
fn success(json: &Bytes) -> v1::Success {
    // A larger result is still a success; it is stored as a preview with a flag.
    if json.len() <= MOST_RESULT {
        return v1::Success { result: json.clone(), ..Default::default() };
    }
    let mut end = MOST_PREVIEW.min(json.len());
    while end > 0 && std::str::from_utf8(&json[..end]).is_err() {
        end -= 1;
    }
    let preview = String::from_utf8_lossy(&json[..end]).into_owned();
    v1::Success { result: Bytes::new(), truncated: true, size: json.len() as u64, preview }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oversized_result_is_cut_on_a_character_boundary() {
        let fits = Bytes::from(format!("\"{}\"", "x".repeat(MOST_RESULT - 2)));
        assert_eq!(success(&fits).result, fits);
        let large = Bytes::from(format!("\"{}\"", "€".repeat(MOST_RESULT / 3 + 1)));
        let cut = success(&large);
        assert!(cut.truncated && cut.result.is_empty());
        assert_eq!(cut.size, large.len() as u64);
        assert!(cut.preview.len() <= MOST_PREVIEW && cut.preview.len() > MOST_PREVIEW - 4);
        assert!(!cut.preview.contains('\u{fffd}'));
    }

    #[test]
    fn standings_become_the_words_of_the_contract() {
        let words = |standing| Stands { job: JobId::mint(0), standing, lease: None }.words();
        assert_eq!(words(v1::Standing::Ok), ("ok", None));
        assert_eq!(words(v1::Standing::Lost), ("stale", Some("lost")));
        assert_eq!(words(v1::Standing::Cancelled), ("stale", Some("cancelled")));
        assert_eq!(words(v1::Standing::TimedOut), ("stale", Some("timed_out")));
        assert_eq!(words(v1::Standing::UnknownJob), ("invalid", Some("unknown")));
    }
}
