//! Tests which fields of a job are shown.

use muster_domain::{Ending, StartId, Tenant, Topic, job::Lease};
use serde_json::Value;

use super::*;

fn head(phase: Phase) -> Head {
    Head {
        version: 1,
        attempt: 0,
        max_attempts: 5,
        lost: 0,
        released: 0,
        timeout: None,
        fence: 0,
        since: Time(1_700_000_003_500_000),
        deadline: None,
        start_by: None,
        started_at: None,
        created_at: Time(1_700_000_000_000_000),
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase,
    }
}

fn spec() -> JobSpec {
    JobSpec::new(Tenant::default(), Topic::parse("mail.send").unwrap())
}

fn shown(view: &JobView<'_>) -> Value {
    serde_json::from_slice(&view.document()).unwrap()
}

#[test]
fn what_does_not_apply_is_absent() {
    let (spec, head) = (spec(), head(Phase::Pending { run_at: Time::NONE }));
    let shown = shown(&JobView::bare(JobId::mint(1), &spec, &head));
    let mut names: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = [
        "attempt",
        "created_at",
        "done",
        "durability",
        "id",
        "labels",
        "max_attempts",
        "priority",
        "state",
        "tenant",
        "topic",
    ];
    assert_eq!(names, expected);
    assert_eq!((&shown["state"], &shown["done"], &shown["attempt"]), (&"pending".into(), &false.into(), &0.into()));
}

#[test]
fn an_ended_job_shows_its_result_to_the_last_digit() {
    let spec = spec();
    let mut head = head(Phase::Ended { end: Ending::Succeeded, lease_end: None });
    head.started_at = Some(Time(1_700_000_001_000_000));
    head.last_worker = Some(WorkerId::trusted("h~default~w1"));
    let result = StoredResult { json: Bytes::from_static(b"{\"n\":123456789012345678901}"), ..Default::default() };
    let error = JobError::new("x", "an earlier attempt", true);
    let view = JobView {
        result: Some(&result),
        payload: Some(b"[1.0]"),
        error: Some(&error),
        ..JobView::bare(JobId::mint(1), &spec, &head)
    };
    let text = String::from_utf8(view.document().to_vec()).unwrap();
    assert!(text.contains(r#""payload":[1.0],"result":{"n":123456789012345678901}"#), "{text}");
    let shown = shown(&view);
    assert_eq!(shown["done"], true);
    assert_eq!(shown["duration_ms"], 2500);
    assert_eq!(shown["worker"], "w1");
    assert!(shown.get("error").is_none(), "a success has no error");
}

#[test]
fn an_oversized_result_is_a_flag_a_size_and_a_preview() {
    let (spec, head) = (spec(), head(Phase::Ended { end: Ending::Succeeded, lease_end: None }));
    let result = StoredResult { truncated: true, size: 300_000, preview: "[\"é".into(), ..Default::default() };
    let shown = shown(&JobView { result: Some(&result), ..JobView::bare(JobId::mint(1), &spec, &head) });
    assert_eq!((&shown["result_truncated"], &shown["result_size"]), (&true.into(), &300_000.into()));
    assert_eq!(shown["result_preview"], "[\"é");
    assert!(shown.get("result").is_none());
}

#[test]
fn a_running_job_names_its_worker_and_its_lease() {
    let lease =
        Lease { worker: WorkerId::trusted("w9"), start_id: StartId([1; 8]), until: Time(1_700_000_030_000_000) };
    let (spec, head) = (spec(), head(Phase::Running { lease, attempt_end: None }));
    let progress = Progress { percent: Some(12.5), message: None, data: Some("{\"a\":1}".into()) };
    let shown = shown(&JobView { progress: Some(&progress), ..JobView::bare(JobId::mint(1), &spec, &head) });
    assert_eq!(shown["worker"], "w9");
    assert_eq!(shown["lease_until"], "2023-11-14T22:13:50.000Z");
    assert_eq!(shown["progress"], serde_json::json!({"percent": 12.5, "data": {"a": 1}}));
}

#[test]
fn a_story_tells_each_attempt() {
    let line = |event, to, attempt, note: &str| Transition {
        event,
        to,
        at: Time(1_700_000_000_000_000),
        attempt,
        note: note.into(),
    };
    let story = [
        line(None, State::Pending, 0, ""),
        line(Some(Event::Dispatch), State::Dispatched, 0, ""),
        line(Some(Event::Start), State::Running, 1, "h~acme~w1"),
        line(Some(Event::Retry), State::Retrying, 1, "boom: it broke: badly"),
        line(Some(Event::Start), State::Running, 2, "w2"),
    ];
    let shown: Value = serde_json::from_slice(&history(JobId::mint(0), &story)).unwrap();
    assert_eq!(shown["transitions"][0]["event"], "submit");
    assert_eq!(shown["transitions"].as_array().unwrap().len(), 5);
    let attempts = &shown["attempts"];
    assert_eq!(attempts[0]["worker"], "w1");
    assert_eq!(attempts[0]["error"], serde_json::json!({"code": "boom", "message": "it broke: badly"}));
    assert_eq!(attempts[1]["worker"], "w2");
    assert!(attempts[1].get("ended_at").is_none());
}
