//! Parses a worker's report, and makes the step that follows from it.
//!
//! Promises: a result over the limit is a success with a flag, its size and a preview; a repeated report leads to the
//! same event as the first one, so that the script recognises it.

use std::{sync::Arc, time::Duration};

use muster_domain::{
    Event, Head, JobError, JobErrorCode, JobId, JobSpec, Phase, RunId, State, Time,
    job::{FailedAttempt, MAX_RELEASES, after_failure},
};
use muster_store::{Record, Step, StoredResult};
use muster_wire::{
    job_id,
    v1::{Carried, Failed, Release, Result as Report, Success, result},
};

use crate::route_state::{RouteState, RouteStates};

/// Largest result that is stored.
const MAX_RESULT: usize = 256 * 1024;
/// Size of the preview of a larger result.
const PREVIEW: usize = 4 * 1024;

/// What the worker reports about its attempt.
#[derive(Default)]
pub(super) enum Kind {
    /// The attempt succeeded.
    Success(Success),
    /// The attempt failed.
    Failed(Failed),
    /// The worker gives the attempt back.
    Release(Release),
    /// The content was taken out.
    #[default]
    Taken,
}

/// A report with a valid id and valid names.
pub(super) struct Read {
    /// Its index in the batch.
    pub(super) place: usize,
    pub(super) id: JobId,
    pub(super) route: Arc<RouteState>,
    pub(super) fence: u64,
    pub(super) worker: String,
    pub(super) kind: Kind,
    /// The code of a failure, for the event of the end.
    pub(super) error_code: Option<String>,
    /// What the job carries: the concurrency slot that the attempt runs under, and its trace.
    pub(super) carried: Carried,
    /// The run that the job belongs to, as carried, or from the record if that was read.
    pub(super) run: Option<RunId>,
    /// The job's spec, if the end goes to the audit log.
    pub(super) told_of: Option<JobSpec>,
}

impl Read {
    /// Parses the report, or returns it with the reason.
    pub(super) fn new(routes: &RouteStates, place: usize, mut item: Report) -> Result<Read, (Box<Report>, String)> {
        let id = match job_id(&item.job_id) {
            Ok(id) => id,
            Err(fault) => return Err((Box::new(item), fault.to_string())),
        };
        let route = match routes.route(&item.tenant, &item.topic) {
            Ok(route) => route,
            Err(fault) => return Err((Box::new(item), fault.to_string())),
        };
        let kind = match item.kind.take() {
            Some(result::Kind::Success(success)) => Kind::Success(success),
            Some(result::Kind::Failed(failed)) => Kind::Failed(failed),
            Some(result::Kind::Release(release)) => Kind::Release(release),
            None => {
                return Err((Box::new(item), "the result is neither a success, a failure nor a release".to_owned()));
            }
        };
        let carried = item.take_carried();
        let Report { fence, worker, .. } = item;
        let run = carried.run();
        Ok(Read { place, id, route, fence, worker, kind, error_code: None, carried, run, told_of: None })
    }
}

/// The step of a success.
pub(super) fn succeed(read: &Read, success: Success) -> Step {
    Step { result: stored(success), ..Step::new(read.id, Event::Succeed, read.fence) }
}

/// The step after a failure or a release, given the job's record. `now` is an estimate of Redis time.
pub(super) fn step_after(read: &mut Read, record: &Record, now: Time) -> Step {
    let head = &record.head;
    read.run = record.spec.run;
    let before = head.attempt_ended_by.filter(|_| head.fence == read.fence && head.lease().is_none());
    let after = match std::mem::take(&mut read.kind) {
        Kind::Release(release) if before == Some(Event::Release) || head.released < MAX_RELEASES => {
            let wait = Duration::from_millis(release.delay_ms);
            return Step { wait, ..Step::new(read.id, Event::Release, read.fence) };
        }
        Kind::Release(_) => {
            let error = JobError::new(JobErrorCode::HandlerError.as_str(), "workers gave the job back too often", true);
            after_failure(read.id, head, &record.spec.retry, error, None)
        }
        Kind::Failed(failed) => {
            let error = failed.failure.map_or_else(unsaid, JobError::from);
            let wish = failed.retry_in_ms.map(Duration::from_millis);
            after_failure(read.id, head, &record.spec.retry, error, wish)
        }
        // Successes do not come here.
        Kind::Success(_) | Kind::Taken => FailedAttempt { event: Event::Fail, wait: Duration::ZERO, error: unsaid() },
    };
    read.error_code = Some(after.error.code.clone());
    if before == Some(Event::TimeOut) && head.state() == State::TimedOut {
        // A repeat of this report, or the reconciler's check was faster: the end is written already, and its effects
        // are repeated.
        read.told_of = Some(record.spec.clone());
        return Step::new(read.id, Event::TimeOut, u64::from(head.version) - 1).with_error(after.error);
    }
    if after.event == Event::Fail && out_of_time(head, read.fence, &after.error, now) {
        // The worker was faster than the reconciler's check: the end is the same, and the script compares the time.
        read.told_of = Some(record.spec.clone());
        return Step::new(read.id, Event::TimeOut, head.version.into()).with_error(after.error);
    }
    let event = before.filter(|event| matches!(event, Event::Retry | Event::Fail)).unwrap_or(after.event);
    Step { wait: after.wait, ..Step::new(read.id, event, read.fence) }.with_error(after.error)
}

/// Whether this failure reports a timeout of the running attempt, and its time is over.
fn out_of_time(head: &Head, fence: u64, error: &JobError, now: Time) -> bool {
    let over = matches!(head.phase, Phase::Running { attempt_end: Some(end), .. } if end.reached(now));
    over && head.fence == fence && error.code == JobErrorCode::AttemptTimeout.as_str()
}

fn unsaid() -> JobError {
    JobError::new(JobErrorCode::HandlerError.as_str(), "", true)
}

/// What is stored of a result. The worker should have shortened it; if it has not, this does.
fn stored(success: Success) -> Option<StoredResult> {
    let Success { result, truncated, size, preview } = success;
    if result.len() > MAX_RESULT {
        let preview = beginning(&result).to_owned();
        return Some(StoredResult { json: Default::default(), truncated: true, size: result.len() as u64, preview });
    }
    if truncated {
        let preview = beginning(preview.as_bytes()).to_owned();
        return Some(StoredResult { json: Default::default(), truncated, size, preview });
    }
    (!result.is_empty()).then(|| StoredResult { json: result, ..Default::default() })
}

/// The first 4 KiB, without a character that was cut.
fn beginning(bytes: &[u8]) -> &str {
    let head = &bytes[..bytes.len().min(PREVIEW)];
    match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(fault) => std::str::from_utf8(&head[..fault.valid_up_to()]).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::{StartId, Tenant, Topic, WorkerId, job::Lease};

    use super::*;

    #[test]
    fn a_result_over_the_limit_is_kept_as_its_beginning() {
        let whole = "ä".repeat(MAX_RESULT);
        let kept = stored(Success { result: whole.clone().into(), ..Default::default() }).unwrap();
        assert!(kept.truncated && kept.json.is_empty());
        assert_eq!(kept.size, whole.len() as u64);
        assert!(kept.preview.len() <= PREVIEW && whole.starts_with(&kept.preview));
        let odd = format!("a{whole}");
        let kept = stored(Success { result: odd.clone().into(), ..Default::default() }).unwrap();
        assert_eq!(kept.preview.len(), PREVIEW - 1, "a character that was cut is left out");
        assert!(odd.starts_with(&kept.preview));
    }

    /// A record whose only attempt started two seconds ago and may take one.
    fn late(now: Time) -> Record {
        let worker = WorkerId::parse("w").unwrap();
        let lease = Lease { worker: worker.clone(), start_id: StartId([0; 8]), until: now + Duration::from_secs(28) };
        let began = now.before(Duration::from_secs(2));
        let head = Head {
            version: 3,
            attempt: 1,
            max_attempts: 1,
            lost: 0,
            released: 0,
            timeout: Some(Duration::from_secs(1)),
            fence: 9,
            since: began,
            deadline: None,
            start_by: None,
            started_at: Some(began),
            created_at: began,
            last_event: Some(Event::Start),
            attempt_ended_by: None,
            last_worker: Some(worker),
            phase: Phase::Running { lease, attempt_end: Some(began + Duration::from_secs(1)) },
        };
        let spec = muster_domain::JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
        Record {
            id: JobId::mint(0),
            head,
            spec,
            payload: None,
            body_hash: None,
            result: None,
            error: None,
            progress: None,
            history: Vec::new(),
            retried_as: None,
            deleted: false,
            place: None,
            slot: None,
            placed: false,
            lease_until: None,
        }
    }

    #[test]
    fn a_worker_that_is_faster_than_the_look_times_its_last_attempt_out_all_the_same() {
        let now = Time(1_800_000_000_000_000);
        let record = late(now);
        let step = |code: &str, fence: u64, now: Time| {
            let failure = (&JobError::new(code, "", true)).into();
            let kind = Kind::Failed(Failed { failure: Some(failure), retry_in_ms: None });
            let (routes, _pokes) = RouteStates::new(Arc::default());
            let route = routes.route("default", "t").unwrap();
            let mut read = Read {
                place: 0,
                id: record.id,
                route,
                fence,
                worker: String::new(),
                kind,
                error_code: None,
                carried: Carried::default(),
                run: None,
                told_of: None,
            };
            let step = step_after(&mut read, &record, now);
            (step.event, step.seen)
        };
        assert_eq!(step("attempt_timeout", 9, now), (Event::TimeOut, 3));
        assert_eq!(step("handler_error", 9, now), (Event::Fail, 9));
        let early = now.before(Duration::from_millis(1500));
        assert_eq!(step("attempt_timeout", 9, early), (Event::Fail, 9), "its time is not up");
        assert_eq!(step("attempt_timeout", 8, now), (Event::Fail, 8), "another attempt's word is stale");
    }

    #[test]
    fn a_result_within_the_limit_is_kept_verbatim() {
        let json = bytes::Bytes::from_static(b"{\"n\": 12345678901234567890}");
        let kept = stored(Success { result: json.clone(), ..Default::default() }).unwrap();
        assert_eq!((kept.json, kept.truncated), (json, false));
        assert_eq!(stored(Success::default()), None);
    }
}
