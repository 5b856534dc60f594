//! Reads what workers send. The whole body is read and every wrong field named before anything is done.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use muster_domain::{
    JobError, JobErrorCode, JobId, ProblemCode, Progress, RequestId, Topic, WorkerId, line::MAX_REQUIRES,
    topic::check_label,
};
use muster_flow::admission::bounds::{MOST_DEPTH, depth};

use crate::{
    json::{Faults, Object, join, text},
    limits::{
        CUT_RESULT, FENCE, LEASE_MS, MOST_CALL, MOST_ERROR_CODE, MOST_EXTRA, MOST_PREVIEW, MOST_PROGRESS_MESSAGE,
        PERCENT, WAIT_MS, WORKER_DELAY_MS,
    },
    problem::Problem,
    workers::{Extend, Held, Lease, Report, Said},
};

/// The results of attempts, and the worker that reports them.
#[derive(Debug)]
pub(in crate::routes) struct Reports {
    pub(in crate::routes) worker: Option<WorkerId>,
    pub(in crate::routes) items: Vec<Report>,
}

/// Reads `POST /worker/lease`.
pub(in crate::routes) fn lease(body: &Bytes) -> Result<Lease, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    for name in ["request_id", "worker_id", "topics"] {
        o.require(name, f);
    }
    let request = o.name("request_id", f, RequestId::parse);
    let worker = o.name("worker_id", f, WorkerId::parse);
    let mut topics = o.names("topics", f, Topic::parse).unwrap_or_default();
    topics.sort();
    topics.dedup();
    if topics.is_empty() || topics.len() > MOST_CALL {
        f.invalid("", "topics", format_args!("names 1 to {MOST_CALL} topics"));
    }
    let provides = read_provides(&mut o, f);
    let max = o.integer("max", f, 1..=MOST_CALL as u64).unwrap_or(1);
    let wait = o.integer("wait_ms", f, WAIT_MS).unwrap_or(0);
    let lease = o.integer("lease_ms", f, LEASE_MS).map(Duration::from_millis);
    o.finish(f);
    faults.into_result()?;
    let (Some(request), Some(worker)) = (request, worker) else { return Err(lost()) };
    Ok(Lease {
        request,
        worker,
        topics,
        provides,
        max: usize::try_from(max).unwrap_or(1),
        wait: Duration::from_millis(wait),
        lease,
    })
}

fn read_provides(o: &mut Object<'_>, f: &mut Faults) -> BTreeMap<String, String> {
    let mut provides = BTreeMap::new();
    let Some(given) = o.object("provides", f) else { return provides };
    let at = given.at().to_owned();
    if given.len() > MAX_REQUIRES {
        f.invalid("", "provides", format_args!("has {} labels; at most {MAX_REQUIRES}", given.len()));
    }
    for (key, raw) in given.into_fields().take(MAX_REQUIRES) {
        match text(raw.get()).map(|value| (check_label(&key, &value), value)) {
            Some((Ok(()), value)) => drop(provides.insert(key.into_owned(), value.into_owned())),
            Some((Err(why), _)) => f.invalid(&at, &key, why),
            None => f.invalid(&at, &key, "must be a string"),
        }
    }
    provides
}

/// Reads `POST /worker/extend`.
pub(in crate::routes) fn extend(body: &Bytes) -> Result<Extend, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    o.require("worker_id", f);
    let worker = o.name("worker_id", f, WorkerId::parse);
    let wait = o.integer("wait_ms", f, WAIT_MS).unwrap_or(0);
    let lease = o.integer("lease_ms", f, LEASE_MS).map(Duration::from_millis);
    let items = items(&mut o, f, |o, f, job, fence| {
        let progress = o.object("progress", f).map(|given| read_progress(given, f));
        Some(Held { job, fence, progress })
    });
    o.finish(f);
    faults.into_result()?;
    let worker = worker.ok_or_else(lost)?;
    Ok(Extend { worker, wait: Duration::from_millis(wait), lease, items })
}

fn read_progress(mut o: Object<'_>, f: &mut Faults) -> Progress {
    let progress = Progress {
        percent: o.number("percent", f, PERCENT),
        message: o.name("message", f, |given| match given.len() > MOST_PROGRESS_MESSAGE {
            true => Err(format!("has at most {MOST_PROGRESS_MESSAGE} bytes")),
            false => Ok(given.to_owned()),
        }),
        data: extra(&mut o, "data", f),
    };
    o.finish(f);
    progress
}

/// Reads `POST /worker/complete`.
pub(in crate::routes) fn completed(body: &Bytes) -> Result<Reports, Problem> {
    reports(body, |o, f| {
        let raw = o.verbatim("result").map(serde_json::value::RawValue::get).unwrap_or_default();
        if depth(raw.as_bytes()) > MOST_DEPTH {
            f.invalid(o.at(), "result", format_args!("nests deeper than {MOST_DEPTH} levels"));
        }
        let json = if raw.is_empty() { Bytes::new() } else { body.slice_ref(raw.as_bytes()) };
        let size = o.integer("result_size", f, CUT_RESULT);
        let preview = o.name("result_preview", f, |given| match given.len() > MOST_PREVIEW {
            true => Err(format!("has at most {MOST_PREVIEW} bytes")),
            false => Ok(given.to_owned()),
        });
        match (size, preview) {
            (None, None) => Some(Said::Done(json)),
            (Some(_), _) if !json.is_empty() => {
                f.invalid(o.at(), "result_size", "give the result, or what was cut of it, not both");
                None
            }
            (Some(size), preview) => Some(Said::Cut(size, preview.unwrap_or_default())),
            (None, Some(_)) => {
                f.invalid(o.at(), "result_preview", "goes with result_size only");
                None
            }
        }
    })
}

/// Reads `POST /worker/fail`.
pub(in crate::routes) fn failed(body: &Bytes) -> Result<Reports, Problem> {
    reports(body, |o, f| {
        o.require("error", f);
        let mut e = o.object("error", f)?;
        let code = e.name("code", f, |given| {
            let odd = given.is_empty() || given.len() > MOST_ERROR_CODE || given.chars().any(char::is_control);
            if odd {
                Err(format!("has 1 to {MOST_ERROR_CODE} bytes and no control characters"))
            } else {
                Ok(given.to_owned())
            }
        });
        let code = code.unwrap_or_else(|| JobErrorCode::HandlerError.as_str().to_owned());
        let message = e.text("message", f).unwrap_or_default();
        let details = extra(&mut e, "details", f);
        let retryable = e.boolean("retryable", f).unwrap_or(true);
        let retry_in = e.integer("retry_in_ms", f, WORKER_DELAY_MS).map(Duration::from_millis);
        e.finish(f);
        Some(Said::Failed(JobError { details, ..JobError::new(code, &message, retryable) }, retry_in))
    })
}

/// Reads `POST /worker/release`.
pub(in crate::routes) fn released(body: &Bytes) -> Result<Reports, Problem> {
    reports(body, |o, f| {
        let delay = o.integer("delay_ms", f, WORKER_DELAY_MS).unwrap_or(0);
        Some(Said::Released(Duration::from_millis(delay)))
    })
}

fn reports(body: &Bytes, read: impl Fn(&mut Object<'_>, &mut Faults) -> Option<Said>) -> Result<Reports, Problem> {
    let mut faults = Faults::default();
    let mut o = Object::from_body(body)?;
    let worker = o.name("worker_id", &mut faults, WorkerId::parse);
    let items = items(&mut o, &mut faults, |o, f, job, fence| Some(Report { job, fence, said: read(o, f)? }));
    o.finish(&mut faults);
    faults.into_result()?;
    Ok(Reports { worker, items })
}

/// Reads `items`: each item names an attempt and carries data about it.
fn items<T>(
    o: &mut Object<'_>,
    f: &mut Faults,
    read: impl Fn(&mut Object<'_>, &mut Faults, JobId, u64) -> Option<T>,
) -> Vec<T> {
    o.require("items", f);
    let Some(given) = o.list("items", f) else { return Vec::new() };
    if given.is_empty() || given.len() > MOST_CALL {
        f.invalid("", "items", format_args!("has 1 to {MOST_CALL} items"));
        return Vec::new();
    }
    let mut items = Vec::with_capacity(given.len());
    for (place, raw) in given.into_iter().enumerate() {
        let Some(mut item) = Object::from_value(raw, join("/items", &place.to_string()), f) else { continue };
        item.require("job_id", f);
        item.require("fence", f);
        let job = item.name("job_id", f, str::parse::<JobId>);
        let fence = item.integer("fence", f, FENCE);
        // Read the rest of the item even if these fields are wrong, so that all faults are named.
        let stand_in = JobId::derive("none", &muster_domain::Tenant::default(), "");
        let value = read(&mut item, f, job.unwrap_or(stand_in), fence.unwrap_or(0));
        item.finish(f);
        items.extend(value.filter(|_| job.is_some() && fence.is_some()));
    }
    items
}

/// Any JSON, verbatim, of bounded size and depth.
fn extra(o: &mut Object<'_>, name: &str, f: &mut Faults) -> Option<String> {
    let raw = o.take(name)?.get();
    if raw.len() > MOST_EXTRA || depth(raw.as_bytes()) > MOST_DEPTH {
        f.add(
            ProblemCode::InvalidRequest,
            o.at(),
            name,
            format_args!("has at most {MOST_EXTRA} bytes and {MOST_DEPTH} levels"),
        );
        return None;
    }
    Some(raw.to_owned())
}

fn lost() -> Problem {
    Problem::new(ProblemCode::Internal, "a field was lost while it was read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers<T: std::fmt::Debug>(read: impl Fn(&Bytes) -> Result<T, Problem>, body: &str) -> Vec<String> {
        let problem = read(&Bytes::from(body.to_owned())).expect_err(body);
        problem.errors.into_iter().map(|fault| fault.pointer).collect()
    }

    const JOB: &str = "0198c0de-0000-7000-8000-000000000000";

    #[test]
    fn a_lease_request_is_read_with_its_defaults() {
        let body = br#"{"request_id":"r1","worker_id":"w-1","topics":["b","a","b"]}"#;
        let asked = lease(&Bytes::from_static(body)).unwrap();
        assert_eq!(asked.topics.iter().map(Topic::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((asked.max, asked.wait, asked.lease), (1, Duration::ZERO, None));
        assert_eq!(pointers(lease, "{}"), ["/request_id", "/worker_id", "/topics", "/topics"]);
        let wrong =
            r#"{"request_id":"r","worker_id":"a b","topics":["A"],"max":101,"wait_ms":30001,"lease_ms":1,"x":1}"#;
        assert_eq!(
            pointers(lease, wrong),
            ["/worker_id", "/topics/0", "/topics", "/max", "/wait_ms", "/lease_ms", "/x"]
        );
    }

    #[test]
    fn results_are_kept_verbatim() {
        let body = Bytes::from(format!(
            r#"{{"items":[{{"job_id":"{JOB}","fence":5,"result":{{"n":1.50,"big":123456789012345678901}}}},{{"job_id":"{JOB}","fence":6}}]}}"#
        ));
        let read = completed(&body).unwrap();
        assert!(
            matches!(&read.items[0].said, Said::Done(json) if &json[..] == br#"{"n":1.50,"big":123456789012345678901}"#)
        );
        assert!(matches!(&read.items[1].said, Said::Done(json) if json.is_empty()));
        assert_eq!(read.items[0].fence, 5);
    }

    #[test]
    fn a_worker_may_cut_a_large_result_itself() {
        let body = |rest: &str| format!(r#"{{"items":[{{"job_id":"{JOB}","fence":5,{rest}}}]}}"#);
        let read = completed(&Bytes::from(body(r#""result_size":20000002,"result_preview":"\"xx""#))).unwrap();
        assert!(matches!(&read.items[0].said, Said::Cut(20_000_002, preview) if preview == "\"xx"));
        for wrong in [r#""result_size":1"#, r#""result_size":300000,"result":1"#] {
            assert_eq!(pointers(completed, &body(wrong)), ["/items/0/result_size"], "{wrong}");
        }
        assert_eq!(pointers(completed, &body(r#""result_preview":"x""#)), ["/items/0/result_preview"]);
    }

    #[test]
    fn a_fence_is_below_two_to_the_53() {
        let body = |fence: u64| format!(r#"{{"items":[{{"job_id":"{JOB}","fence":{fence}}}]}}"#);
        assert_eq!(completed(&Bytes::from(body((1 << 53) - 1))).unwrap().items[0].fence, (1 << 53) - 1);
        assert_eq!(pointers(completed, &body(1 << 53)), ["/items/0/fence"]);
    }

    #[test]
    fn failures_default_to_a_retryable_handler_error() {
        let body = Bytes::from(format!(r#"{{"items":[{{"job_id":"{JOB}","fence":5,"error":{{}}}}]}}"#));
        let read = failed(&body).unwrap();
        let Said::Failed(error, retry_in) = &read.items[0].said else { panic!("not a failure") };
        assert_eq!((error.code.as_str(), error.retryable, *retry_in), ("handler_error", true, None));
    }

    #[test]
    fn every_wrong_item_is_named() {
        let body = format!(
            r#"{{"items":[{{"job_id":"x","fence":-1}},7,{{"job_id":"{JOB}"}},{{"job_id":"{JOB}","fence":1,"error":{{"retryable":"no","y":1}}}}]}}"#
        );
        assert_eq!(
            pointers(failed, &body),
            [
                "/items/0/job_id",
                "/items/0/fence",
                "/items/0/error",
                "/items/1",
                "/items/2/fence",
                "/items/2/error",
                "/items/3/error/retryable",
                "/items/3/error/y"
            ]
        );
        assert_eq!(pointers(released, r#"{"items":[]}"#), ["/items"]);
        assert_eq!(pointers(completed, "{}"), ["/items"]);
    }

    #[test]
    fn progress_is_bounded() {
        let body = |progress: &str| {
            format!(r#"{{"worker_id":"w","items":[{{"job_id":"{JOB}","fence":1,"progress":{progress}}}]}}"#)
        };
        let read = extend(&Bytes::from(body(r#"{"percent":12.5,"message":"m","data":[1]}"#))).unwrap();
        let progress = read.items[0].progress.clone().unwrap();
        assert_eq!((progress.percent, progress.data.as_deref()), (Some(12.5), Some("[1]")));
        assert_eq!(pointers(extend, &body(r#"{"percent":101}"#)), ["/items/0/progress/percent"]);
    }
}
