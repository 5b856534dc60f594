//! Extends the leases of a worker's jobs. The call may also wait for the cancel of a job.

use std::{collections::BTreeMap, time::Duration};

use muster_bus::{Question, subjects};
use muster_domain::{JobId, Progress, WorkerId};
use muster_store::Record;
use muster_wire::{Body, encoded_len, job_id, v1};
use tokio::time::Instant;

use super::{
    Stands, Workers,
    beat::Beat,
    lease::{hear, lease_ms},
    on_bus, raw,
};
use crate::{auth::Caller, problem::Problem};

/// The lease if neither the worker nor the topic sets one.
const USUAL_LEASE: Duration = Duration::from_secs(30);
/// How long the schedulers may take to answer.
const EXTEND_WITHIN: Duration = Duration::from_secs(5);

/// The request of a worker to keep its jobs.
#[derive(Debug)]
pub(crate) struct Extend {
    pub(crate) worker: WorkerId,
    pub(crate) wait: Duration,
    /// `None`: the lease of each job's topic.
    pub(crate) lease: Option<Duration>,
    pub(crate) items: Vec<Held>,
}

/// One job that the worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    pub(crate) fence: u64,
    pub(crate) progress: Option<Progress>,
}

impl Workers {
    /// Extends the leases. With a wait, it answers when the worker no longer holds one of the jobs, or when the time
    /// is up; it keeps extending the leases meanwhile.
    pub(crate) async fn extend(&self, caller: &Caller, asked: &Extend) -> Result<Vec<Stands>, Problem> {
        let worker = on_bus(&caller.tenant, &asked.worker);
        let until = Instant::now() + asked.wait;
        // Subscribe before asking, so that no cancel is missed in between.
        let mut control = match asked.wait.is_zero() {
            true => None,
            false => self.flow.bus.subscribe(&subjects::worker_ctl(&worker), None).await.ok(),
        };
        let ids: Vec<JobId> = asked.items.iter().map(|item| item.job).collect();
        let (known, away) = self.theirs(caller, &ids).await;
        self.beat_for(caller, &worker, &known).await;
        let mut stands = self.extend_once(&worker, asked, &known, Report::With).await?;
        if let Some(problem) = away {
            // A Redis node does not answer. The leases of jobs on the other nodes were extended all the same.
            return Err(problem);
        }
        let mut asked_at = Instant::now();
        while stands.iter().all(|one| one.standing == v1::Standing::Ok) {
            // Extend again after a third of the shortest granted lease.
            let again = asked_at + stands.iter().filter_map(|one| one.lease).min().unwrap_or(USUAL_LEASE) / 3;
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep_until(again) => {
                    stands = self.extend_once(&worker, asked, &known, Report::Without).await?;
                    asked_at = Instant::now();
                }
                notice = hear(&mut control) => {
                    let cancelled = told(&notice, asked);
                    for one in &mut stands {
                        if let Some(standing) = cancelled.get(&one.job) {
                            (one.standing, one.lease) = (*standing, None);
                        }
                    }
                }
            }
        }
        let passed = asked_at.elapsed();
        for one in &mut stands {
            one.lease = one.lease.map(|lease| lease.saturating_sub(passed));
        }
        Ok(stands)
    }

    async fn extend_once(
        &self,
        worker: &WorkerId,
        asked: &Extend,
        known: &BTreeMap<JobId, Record>,
        report: Report,
    ) -> Result<Vec<Stands>, Problem> {
        let deadline = Instant::now() + EXTEND_WITHIN;
        let mut stands: Vec<Option<Stands>> = Vec::with_capacity(asked.items.len());
        for item in &asked.items {
            let unknown = Stands { job: item.job, standing: v1::Standing::UnknownJob, lease: None };
            stands.push((!known.contains_key(&item.job)).then_some(unknown));
        }
        loop {
            let (places, items) = self.next_request(asked, known, report, &stands);
            if items.is_empty() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Problem::store_away());
            }
            let request = Body::Extend(v1::ExtendRequest { worker: worker.to_string(), items });
            let Body::Extended(reply) = self.ask(Question::Extend, &request, left).await? else {
                return Err(Problem::bus_away());
            };
            // The answers come in the order of the request. Items without an answer are asked again.
            let mut waits = reply.items.is_empty();
            for (place, answer) in places.into_iter().zip(reply.items) {
                let job = asked.items[place].job;
                match answer.standing() {
                    v1::Standing::Again => waits = true,
                    _ if job_id(&answer.job_id) != Ok(job) => waits = true,
                    // The answer is OK, but without a lease: the worker itself has ended the attempt.
                    v1::Standing::Ok if answer.lease_us == 0 => {
                        stands[place] = Some(Stands { job, standing: v1::Standing::Lost, lease: None });
                    }
                    standing => {
                        let held = standing == v1::Standing::Ok && answer.lease_us > 0;
                        let lease = held.then(|| Duration::from_micros(answer.lease_us));
                        stands[place] = Some(Stands { job, standing, lease });
                    }
                }
            }
            if waits {
                tokio::time::sleep(super::ASK_PAUSE).await;
            }
        }
        Ok(stands.into_iter().flatten().collect())
    }

    /// As many of the unanswered items as fit into one message, and their indexes.
    fn next_request(
        &self,
        asked: &Extend,
        known: &BTreeMap<JobId, Record>,
        report: Report,
        stands: &[Option<Stands>],
    ) -> (Vec<usize>, Vec<v1::ExtendAsk>) {
        let (mut places, mut items, mut size) = (Vec::new(), Vec::new(), 256);
        for (place, item) in asked.items.iter().enumerate().filter(|(place, _)| stands[*place].is_none()) {
            let Some(record) = known.get(&item.job) else { continue };
            let ask = extend_ask(item, asked, record, report);
            size += encoded_len(&ask) + 8;
            if size > self.flow.bus.max_message() && !items.is_empty() {
                break;
            }
            places.push(place);
            items.push(ask);
        }
        (places, items)
    }

    async fn beat_for(&self, caller: &Caller, worker: &WorkerId, held: &BTreeMap<JobId, Record>) {
        let mut topics: Vec<String> = held.values().map(|record| record.spec.topic.to_string()).collect();
        topics.sort_unstable();
        topics.dedup();
        if topics.is_empty() {
            return;
        }
        let (slots, busy) = (held.len(), held.len());
        if !self.beats.is_due(worker) {
            return;
        }
        // A worker that was asked to drain takes no more jobs.
        let consuming = !self.flow.store.is_drained(worker).await.unwrap_or(false);
        let beat = Beat { worker, tenant: &caller.tenant, topics, slots, busy, provides: None, consuming };
        self.beats.send(&self.flow.bus, beat).await;
    }
}

/// Whether the progress is sent with the request: once is enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Report {
    With,
    Without,
}

fn extend_ask(item: &Held, asked: &Extend, record: &Record, report: Report) -> v1::ExtendAsk {
    v1::ExtendAsk {
        job_id: raw(item.job),
        fence: item.fence,
        lease_ms: lease_ms(asked.lease),
        progress: item.progress.as_ref().filter(|_| report == Report::With).map(v1::Progress::from),
        tenant: record.spec.tenant.to_string(),
        topic: record.spec.topic.to_string(),
    }
}

/// The jobs of this call that a notice takes from the worker.
fn told(notice: &v1::Control, asked: &Extend) -> BTreeMap<JobId, v1::Standing> {
    let named = notice.cancelled.iter().filter_map(|n| Some((job_id(&n.job_id).ok()?, n.fence, n.standing())));
    let held = |job: JobId, fence: u64| asked.items.iter().any(|item| item.job == job && item.fence == fence);
    named
        .filter(|(job, fence, _)| held(*job, *fence))
        .map(|(job, _, standing)| {
            // Whatever the notice says, the worker has to stop the job.
            let stop = matches!(standing, v1::Standing::Ok | v1::Standing::Unspecified | v1::Standing::Again);
            (job, if stop { v1::Standing::Cancelled } else { standing })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_counts_for_the_attempt_it_names() {
        let job = JobId::mint(0);
        let asked = Extend {
            worker: WorkerId::trusted("w"),
            wait: Duration::ZERO,
            lease: None,
            items: vec![Held { job, fence: 7, progress: None }],
        };
        let notice = |job: JobId, fence| v1::Control {
            cancelled: vec![v1::CancelNotice { job_id: raw(job), fence, standing: v1::Standing::TimedOut.into() }],
            ..Default::default()
        };
        assert_eq!(told(&notice(job, 7), &asked), [(job, v1::Standing::TimedOut)].into());
        assert!(told(&notice(job, 6), &asked).is_empty());
        assert!(told(&notice(JobId::mint(1), 7), &asked).is_empty());
    }
}
