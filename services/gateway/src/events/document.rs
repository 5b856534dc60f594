//! Events as clients read them: CloudEvents 1.0, as JSON.

use std::fmt::Display;

use bytes::Bytes;
use muster_domain::{JobId, Progress, RunId, State, Time};
use muster_wire::v1::{JobEvent, ProgressNotice, RunEvent};

use super::{Point, item::Report};
use crate::view::{Json, document, write_progress};

/// The CloudEvents source of all events: the whole cluster, whichever gateway sends the event.
const SOURCE: &str = "urn:muster:jobs";

fn frame(json: &mut Json, id: Option<Point>, kind: &str, subject: Option<&dyn Display>, at: Time) {
    json.text("specversion", "1.0");
    if let Some(id) = id {
        json.text("id", &id.to_string());
    }
    json.text("source", SOURCE);
    json.text("type", kind);
    if let Some(subject) = subject {
        json.text("subject", &subject.to_string());
    }
    json.moment("time", at.some());
    json.text("datacontenttype", "application/json");
}

/// The event that a job has reached a state. `None` if the job id is not valid.
pub(super) fn moved(id: Point, state: State, event: &JobEvent) -> Option<Bytes> {
    let job = JobId::from_slice(&event.job_id)?;
    Some(document(|json| {
        frame(json, Some(id), &format!("muster.job.{}", state.as_str()), Some(&job), Time(event.at));
        json.object(Some("data"), |json| {
            json.text("job_id", &job.to_string());
            json.text("tenant", &event.tenant);
            json.text("topic", &event.topic);
            json.text("state", state.as_str());
            json.boolean("done", state.is_end());
            json.integer("attempt", event.attempt.into());
            json.integer("version", event.version.into());
            if !event.run_id.is_empty() {
                json.text("run_id", &event.run_id);
            }
            if !event.error_code.is_empty() {
                json.text("error_code", &event.error_code);
            }
        });
    }))
}

/// The event that a run or a step of it has reached a state, or an event of the user's; `payloads` is whether the
/// watcher may see its data. `None` if the run id is not valid.
pub(super) fn of_run(id: Point, report: Report<'_>, event: &RunEvent, payloads: bool) -> Option<Bytes> {
    let run = RunId::from_slice(&event.run_id)?;
    let kind = match report {
        Report::Run(state) => format!("muster.run.{state}"),
        Report::Step(state) => format!("muster.step.{state}"),
        Report::Own(kind) => kind.to_owned(),
    };
    let shown = document(|json| {
        frame(json, Some(id), &kind, Some(&run), Time(event.at));
        json.object(Some("data"), |json| {
            json.text("run_id", &run.to_string());
            json.text("tenant", &event.tenant);
            json.text("workflow", &event.workflow);
            json.integer("version", event.version.into());
            if !event.step.is_empty() {
                json.text("step", &event.step);
            }
            match report {
                Report::Run(state) => {
                    json.text("state", state.as_str());
                    json.boolean("done", state.is_end());
                }
                Report::Step(state) => {
                    json.text("state", state.as_str());
                    json.boolean("done", state.is_end());
                }
                Report::Own(_) => {
                    json.text("event_id", &event.id);
                    if payloads && !event.data.is_empty() {
                        json.raw("data", &event.data);
                    }
                }
            }
            if !event.error_code.is_empty() {
                json.text("error_code", &event.error_code);
            }
        });
    });
    Some(on_one_line(&shown))
}

/// The event that a worker has reported progress. A client cannot resume from it, so it has no id.
pub(super) fn progress(notice: &ProgressNotice, now: Time) -> Option<Bytes> {
    let job = JobId::from_slice(&notice.job_id)?;
    let progress = Progress::from(notice.progress.clone()?);
    let shown = document(|json| {
        frame(json, None, "muster.job.progress", Some(&job), now);
        json.object(Some("data"), |json| {
            json.text("job_id", &job.to_string());
            json.text("tenant", &notice.tenant);
            json.text("topic", &notice.topic);
            json.object(Some("progress"), |json| write_progress(json, &progress));
        });
    });
    Some(on_one_line(&shown))
}

/// Data that others wrote is JSON, and may have line breaks between tokens, which would end a field of the event stream.
fn on_one_line(shown: &Bytes) -> Bytes {
    shown.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect()
}

/// The event that events are missing. The events that follow come after `id`.
pub(super) fn gap(id: Point, now: Time) -> Bytes {
    document(|json| {
        frame(json, Some(id), "muster.gap", None, now);
        json.object(Some("data"), |json| {
            json.text("detail", "events before this one are missing; read again what you need to know");
        });
    })
}

#[cfg(test)]
mod tests {
    use muster_bus::Mark;
    use muster_engine::run::{RunState, StepState};
    use muster_wire::v1::Progress;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_event_is_a_cloud_event() {
        let job = JobId::mint(0);
        let event = JobEvent {
            job_id: job.as_bytes().to_vec().into(),
            tenant: "acme".into(),
            topic: "mail".into(),
            state: State::Failed.code().into(),
            version: 5,
            attempt: 2,
            at: 1_700_000_000_000_000,
            run_id: "r".into(),
            error_code: "boom".into(),
        };
        let id = Point::within(Mark { epoch: Time(255), seq: 3 }, 1);
        let shown: Value = serde_json::from_slice(&moved(id, State::Failed, &event).unwrap()).unwrap();
        let data = json!({"job_id": job.to_string(), "tenant": "acme", "topic": "mail", "state": "failed",
            "done": true, "attempt": 2, "version": 5, "run_id": "r", "error_code": "boom"});
        let whole = json!({"specversion": "1.0", "id": "ff-3-1", "source": "urn:muster:jobs",
            "type": "muster.job.failed", "subject": job.to_string(), "time": Time(event.at).rfc3339(),
            "datacontenttype": "application/json", "data": data});
        assert_eq!(shown, whole);
    }

    fn of_run_event(event: &RunEvent, payloads: bool) -> Value {
        let id = Point::within(Mark { epoch: Time(255), seq: 3 }, 1);
        let shown = of_run(id, Report::of(event).unwrap(), event, payloads).unwrap();
        assert!(!shown.contains(&b'\n'), "{shown:?}");
        serde_json::from_slice(&shown).unwrap()
    }

    #[test]
    fn an_event_of_a_run_is_a_cloud_event() {
        let run = RunId::mint(0);
        let event = RunEvent {
            run_id: run.as_bytes().to_vec().into(),
            tenant: "acme".into(),
            workflow: "order".into(),
            version: 3,
            state: RunState::Failed.code().into(),
            at: 1_700_000_000_000_000,
            error_code: "boom".into(),
            ..Default::default()
        };
        let shown = of_run_event(&event, true);
        let data = json!({"run_id": run.to_string(), "tenant": "acme", "workflow": "order", "version": 3,
            "state": "failed", "done": true, "error_code": "boom"});
        let whole = json!({"specversion": "1.0", "id": "ff-3-1", "source": "urn:muster:jobs",
            "type": "muster.run.failed", "subject": run.to_string(), "time": Time(event.at).rfc3339(),
            "datacontenttype": "application/json", "data": data});
        assert_eq!(shown, whole);

        let (step, step_state) = ("charge[2]".to_owned(), StepState::Running.code().into());
        let of_step = RunEvent { kind: "step".into(), step, step_state, error_code: String::new(), ..event };
        let shown = of_run_event(&of_step, true);
        let data = json!({"run_id": run.to_string(), "tenant": "acme", "workflow": "order", "version": 3,
            "step": "charge[2]", "state": "running", "done": false});
        assert_eq!((&shown["type"], &shown["data"]), (&json!("muster.step.running"), &data));
    }

    #[test]
    fn an_event_of_the_users_brings_its_data_to_those_who_may_see_payloads() {
        let run = RunId::mint(0);
        let event = RunEvent {
            run_id: run.as_bytes().to_vec().into(),
            kind: "order.failed".into(),
            step: "alarm".into(),
            id: "e-1".into(),
            data: "{\n\"order\": 7}".into(),
            ..Default::default()
        };
        let shown = of_run_event(&event, true);
        assert_eq!((&shown["type"], &shown["subject"]), (&json!("order.failed"), &json!(run.to_string())));
        assert_eq!((&shown["data"]["data"], &shown["data"]["event_id"]), (&json!({"order": 7}), &json!("e-1")));
        let hidden = of_run_event(&event, false);
        assert_eq!((&hidden["data"]["step"], hidden["data"].get("data")), (&json!("alarm"), None));
    }

    #[test]
    fn progress_stands_on_one_line_whatever_its_data_looks_like() {
        let data = "{\r\n  \"a\": 1,\r  \"b\": \"x\\r\\n\"\n}";
        let progress = Some(Progress { data: data.into(), message: "one\r\ntwo".into(), ..Default::default() });
        let job_id = JobId::mint(0).as_bytes().to_vec().into();
        let notice = ProgressNotice { job_id, tenant: "acme".into(), topic: "mail".into(), progress };
        let shown = super::progress(&notice, Time(0)).unwrap();
        assert!(!shown.iter().any(|byte| matches!(byte, b'\r' | b'\n')), "{shown:?}");
        let shown: Value = serde_json::from_slice(&shown).unwrap();
        let progress = json!({"message": "one\r\ntwo", "data": {"a": 1, "b": "x\r\n"}});
        assert_eq!(shown["data"]["progress"], progress);
    }
}
