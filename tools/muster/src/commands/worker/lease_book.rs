//! The jobs that an HTTP worker holds: those that it runs, and those that it has finished but not yet reported
//! successfully. Pure bookkeeping; `http` makes the calls.

use std::collections::{HashMap, VecDeque};

use muster_sdk::{HandlerError, JobResult};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;

/// The most items of one call.
pub(super) const MAX_ITEMS: usize = 100;
/// The most bytes of results in one call.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// How an attempt ended; reported until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Complete(JobResult),
    Fail(HandlerError),
    Release,
}

/// A report about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) job_id: String,
    pub(super) fence: u64,
    pub(super) report: Report,
}

impl Report {
    /// The path of the call for this kind of report.
    pub(super) fn path(&self) -> &'static str {
        match self {
            Report::Complete(_) => "/worker/complete",
            Report::Fail(_) => "/worker/fail",
            Report::Release => "/worker/release",
        }
    }

    fn size(&self) -> usize {
        if let Report::Complete(JobResult::Whole(json)) = self { json.len() } else { 0 }
    }
}

struct HeldJob {
    fence: u64,
    stop: CancellationToken,
    giving_back: bool,
}

/// All held jobs and open reports.
#[derive(Default)]
pub(super) struct LeaseBook {
    held: HashMap<String, HeldJob>,
    reports: VecDeque<Item>,
}

impl LeaseBook {
    /// How many jobs are held, running or not yet settled.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds a leased job; `None` if it is held already (a repeated answer).
    pub(super) fn take(&mut self, job_id: &str, fence: u64) -> Option<CancellationToken> {
        if self.held.get(job_id).is_some_and(|held| held.fence == fence) {
            return None;
        }
        let stop = CancellationToken::new();
        self.held.insert(job_id.to_owned(), HeldJob { fence, stop: stop.clone(), giving_back: false });
        Some(stop)
    }

    /// Records the outcome of a handler. Nothing is reported about a job that the worker no longer holds.
    pub(super) fn finish(&mut self, job_id: &str, fence: u64, outcome: Result<JobResult, HandlerError>) {
        let Some(held) = self.held.get(job_id).filter(|held| held.fence == fence) else {
            return;
        };
        let report = match outcome {
            Ok(result) => Report::Complete(result.fitted()),
            Err(_) if held.giving_back => Report::Release,
            Err(error) => Report::Fail(error),
        };
        self.reports.push_back(Item { job_id: job_id.to_owned(), fence, report });
    }

    /// Gives back a job that was never begun.
    pub(super) fn release(&mut self, job_id: &str, fence: u64) {
        self.reports.push_back(Item { job_id: job_id.to_owned(), fence, report: Report::Release });
    }

    /// The time to drain is over: every handler is asked to stop, and unfinished jobs go back.
    pub(super) fn give_back_all(&mut self) {
        for held in self.held.values_mut() {
            held.giving_back = true;
            held.stop.cancel();
        }
    }

    /// The items of an extension: jobs and fences.
    pub(super) fn extensions(&self) -> Vec<(String, u64)> {
        self.held.iter().take(MAX_ITEMS).map(|(job_id, held)| (job_id.clone(), held.fence)).collect()
    }

    /// Handles the answer to an extension of these attempts: every job that is not `ok` must stop, and is no longer
    /// held.
    pub(super) fn extended(&mut self, asked: &[(String, u64)], answer: &Value) {
        for said in answer["items"].as_array().into_iter().flatten() {
            let (Some(job_id), Some(status)) = (said["job_id"].as_str(), said["status"].as_str()) else {
                continue;
            };
            // For an attempt that is being reported, the answer to the report counts.
            if status == "ok" || self.reports.iter().any(|item| item.job_id == job_id) {
                continue;
            }
            // The job may have been leased again meanwhile: that is another attempt.
            let fence = asked.iter().find(|(job, _)| job == job_id).map(|(_, fence)| *fence);
            if self.held.get(job_id).map(|held| held.fence) != fence {
                continue;
            }
            if let Some(held) = self.held.remove(job_id) {
                tracing::info!(job = job_id, reason = said["reason"].as_str().unwrap_or(status), "told to stop");
                held.stop.cancel();
            }
        }
    }

    /// The next reports of one kind; they stay in the book until [`LeaseBook::reported`].
    pub(super) fn next_reports(&self, most: usize) -> Vec<Item> {
        let mut bytes = 0;
        let Some(path) = self.reports.front().map(|item| item.report.path()) else {
            return Vec::new();
        };
        let fits = |item: &&Item| {
            bytes += item.report.size();
            bytes <= MAX_BYTES || bytes == item.report.size()
        };
        let same = self.reports.iter().filter(|item| item.report.path() == path);
        same.take(most.min(MAX_ITEMS)).take_while(fits).cloned().collect()
    }

    /// Removes these reports: they were answered, whatever the answer.
    pub(super) fn reported(&mut self, items: &[Item]) {
        for item in items {
            self.reports.retain(|waiting| (&waiting.job_id, waiting.fence) != (&item.job_id, item.fence));
            if self.held.get(&item.job_id).is_some_and(|held| held.fence == item.fence) {
                self.held.remove(&item.job_id);
            }
        }
    }

    /// Handles a report whose content the gateway refuses for good. A result becomes a failure that says so; any
    /// other report is dropped, and the lease ends by itself.
    pub(super) fn refused(&mut self, item: &Item, why: &str) {
        match item.report {
            Report::Complete(_) => {
                let error = HandlerError::permanent(format_args!("the result was refused: {why}"));
                let place = self.reports.iter_mut().find(|w| (&w.job_id, w.fence) == (&item.job_id, item.fence));
                if let Some(waiting) = place {
                    waiting.report = Report::Fail(error);
                }
            }
            Report::Fail(_) | Report::Release => {
                tracing::error!(job = %item.job_id, why, "the gateway refused a report; dropping it");
                self.reported(std::slice::from_ref(item));
            }
        }
    }
}

/// The body of the call for reports of one kind.
pub(super) fn body(items: &[Item]) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        job_id: &'a str,
        fence: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result_size: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result_preview: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Value>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        items: Vec<Line<'a>>,
    }
    let mut lines = Vec::with_capacity(items.len());
    for Item { job_id, fence, report } in items {
        let mut line =
            Line { job_id, fence: *fence, result: None, result_size: None, result_preview: None, error: None };
        match report {
            Report::Complete(JobResult::Whole(json)) => line.result = Some(serde_json::from_slice(json)?),
            Report::Complete(JobResult::Cut { size, preview }) => {
                (line.result_size, line.result_preview) = (Some(*size), Some(preview.as_str()));
            }
            Report::Fail(error) => {
                let mut body = json!({"code": error.code, "message": error.message, "retryable": error.retryable});
                if let Some(details) = error.details.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
                    body["details"] = details;
                }
                if let Some(wait) = error.retry_in {
                    body["retry_in_ms"] = crate::spans::millis(wait).into();
                }
                line.error = Some(body);
            }
            Report::Release => {}
        }
        lines.push(line);
    }
    serde_json::to_string(&Body { items: lines })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    fn ok(text: &'static str) -> Result<JobResult, HandlerError> {
        Ok(JobResult::Whole(Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn a_job_is_held_until_its_report_was_heard() {
        let mut book = LeaseBook::default();
        assert!(book.take("a", 1).is_some());
        assert!(book.take("a", 1).is_none(), "the same lease again is not a second run");
        book.finish("a", 1, ok(r#"{"n": 1.50}"#));
        let reports = book.next_reports(MAX_ITEMS);
        assert_eq!(book.len(), 1);
        assert_eq!(body(&reports).unwrap(), r#"{"items":[{"job_id":"a","fence":1,"result":{"n": 1.50}}]}"#);
        book.reported(&reports);
        assert!(book.is_empty() && book.next_reports(MAX_ITEMS).is_empty());
    }

    #[test]
    fn a_lost_job_is_stopped_and_never_reported() {
        let mut book = LeaseBook::default();
        let stop = book.take("a", 1).unwrap();
        book.extended(
            &[("a".into(), 1)],
            &json!({"items": [{"job_id": "a", "status": "stale", "reason": "cancelled"}]}),
        );
        assert!(stop.is_cancelled() && book.is_empty());
        book.finish("a", 1, ok("1"));
        assert!(book.next_reports(MAX_ITEMS).is_empty());
    }

    #[test]
    fn a_late_word_about_an_older_attempt_does_not_stop_the_one_that_runs() {
        let mut book = LeaseBook::default();
        book.take("a", 1).unwrap();
        let asked = book.extensions();
        book.finish("a", 1, Err(HandlerError::retryable("again")));
        book.reported(&book.next_reports(MAX_ITEMS));
        let stop = book.take("a", 2).unwrap();
        book.extended(&asked, &json!({"items": [{"job_id": "a", "status": "stale", "reason": "lost"}]}));
        assert!(!stop.is_cancelled() && book.len() == 1);
    }

    #[test]
    fn a_large_result_travels_as_its_size_and_its_beginning() {
        let mut book = LeaseBook::default();
        book.take("a", 1).unwrap();
        book.finish("a", 1, Ok(JobResult::Cut { size: 20_000_002, preview: "\"xx".into() }));
        book.take("b", 2).unwrap();
        book.finish("b", 2, Ok(JobResult::Whole(Bytes::from(format!("\"{}\"", "x".repeat(300_000))))));
        let said: Value = serde_json::from_str(&body(&book.next_reports(MAX_ITEMS)).unwrap()).unwrap();
        let cut = json!({"job_id": "a", "fence": 1, "result_size": 20_000_002, "result_preview": "\"xx"});
        assert_eq!(said["items"][0], cut);
        assert_eq!(said["items"][1]["result_size"], 300_002);
        assert_eq!(said["items"][1]["result_preview"].as_str().map(str::len), Some(4096));
    }

    #[test]
    fn what_a_drain_cuts_short_is_released_and_what_it_finishes_is_kept() {
        let mut book = LeaseBook::default();
        book.take("a", 1).unwrap();
        book.take("b", 2).unwrap();
        book.give_back_all();
        book.finish("a", 1, Err(HandlerError::retryable("told to stop")));
        book.finish("b", 2, ok("1"));
        assert_eq!(book.next_reports(MAX_ITEMS)[0].report, Report::Release);
        book.reported(&book.next_reports(MAX_ITEMS));
        assert_eq!(
            book.next_reports(MAX_ITEMS)[0].report,
            Report::Complete(JobResult::Whole(Bytes::from_static(b"1")))
        );
    }

    #[test]
    fn a_failure_tells_all_that_the_handler_said() {
        let error = HandlerError::retryable("no").details(&json!({"at": 7})).retry_in(Duration::from_millis(1_500));
        let item = Item { job_id: "j".into(), fence: 5, report: Report::Fail(error) };
        let said: Value = serde_json::from_str(&body(&[item]).unwrap()).unwrap();
        let error = &said["items"][0]["error"];
        assert_eq!((&error["details"], &error["retry_in_ms"]), (&json!({"at": 7}), &json!(1_500)));
    }

    #[test]
    fn reports_of_one_kind_go_together_and_a_refused_result_becomes_a_failure() {
        let mut book = LeaseBook::default();
        for (n, id) in ["a", "b", "c"].into_iter().enumerate() {
            book.take(id, n as u64).unwrap();
        }
        book.finish("a", 0, ok("1"));
        book.finish("b", 1, Err(HandlerError::permanent("no")));
        book.finish("c", 2, ok("3"));
        let first = book.next_reports(MAX_ITEMS);
        assert_eq!(first.iter().map(|i| i.job_id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        book.refused(&first[0], "too deep");
        let fails = book.next_reports(MAX_ITEMS);
        assert_eq!(fails.iter().map(|i| i.job_id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
