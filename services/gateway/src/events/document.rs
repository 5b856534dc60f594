//! Events as clients read them: CloudEvents 1.0, as JSON.

use bytes::Bytes;
use muster_domain::{JobId, Progress, State, Time};
use muster_wire::v1::{JobEvent, ProgressNotice};

use super::Point;
use crate::view::{Json, document, write_progress};

/// The CloudEvents source of all events: the whole cluster, whichever gateway sends the event.
const SOURCE: &str = "urn:muster:jobs";

fn frame(json: &mut Json, id: Option<Point>, kind: &str, subject: Option<&JobId>, at: Time) {
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
    // The progress data is JSON as the worker wrote it. It may have line breaks between tokens, which would end a
    // field of the event stream.
    let on_one_line = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    Some(shown.iter().map(on_one_line).collect())
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
