//! Watches events as they happen, on any gateway: after a lost connection, a new one continues where the old one
//! ended.

use std::time::Duration;

use clap::Args;
use muster_sdk::sse::Frames;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Caller, ask, checked};
use crate::{
    api::Call,
    commands::ended::What,
    outcome::Failure,
    output::{self, Format},
    signals::StopSignals,
};

/// A gateway sends something every 15 s; a connection that is silent for longer than this is closed.
const SILENCE: Duration = Duration::from_secs(40);

/// Watch events; with a job id until that job ends, with exit code 4 if it did not succeed
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Only this job, until it has ended
    id: Option<String>,

    /// Only this topic
    #[arg(long, conflicts_with = "id")]
    topic: Option<String>,

    /// Only these types, such as `muster.job.failed`; separated by commas
    #[arg(long = "type", value_name = "TYPES", conflicts_with = "id")]
    types: Option<String>,
}

impl Watch {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        if let Some(id) = &self.id {
            checked(id)?;
        }
        let mut signals = StopSignals::listen()?;
        tokio::select! {
            watched = self.watch(caller) => watched,
            () = signals.next() => Ok(()),
        }
    }

    async fn watch(&self, caller: &Caller) -> anyhow::Result<()> {
        let mut frames = Frames::default();
        loop {
            let call = self.call(frames.last_id());
            let mut response = caller.api.open(&call).await.map_err(Failure::from)?;
            frames.begin();
            // An end before the connection was open is not reported on it: show it from the job.
            if let Some(end) = self.ended(caller).await? {
                let _ = show(caller.format, &end_event(&end));
                return Ok(What::Job.judged(&end)?);
            }
            while let Ok(Ok(Some(bytes))) = timeout(SILENCE, response.chunk()).await {
                frames.feed(&bytes);
                for frame in frames.by_ref().filter(|frame| !frame.data.is_empty()) {
                    let event: Value = serde_json::from_str(&frame.data)?;
                    if show(caller.format, &event).is_err() {
                        return Ok(());
                    }
                    let missed = event["type"] == "muster.gap";
                    if (missed || event["data"]["done"] == true)
                        && let Some(end) = self.ended(caller).await?
                    {
                        return Ok(What::Job.judged(&end)?);
                    }
                }
            }
            caller.api.turn_away();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn call(&self, after: Option<&str>) -> Call {
        let asked = [("job_id", &self.id), ("topic", &self.topic), ("type", &self.types)];
        let given = asked.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        given.fold(Call::follow("/events", after), |call, (name, value)| call.query(name, value))
    }

    /// The job that is watched, if there is one and it has ended.
    async fn ended(&self, caller: &Caller) -> Result<Option<Value>, Failure> {
        let Some(id) = &self.id else { return Ok(None) };
        let job = ask(caller, &Call::get(format!("/jobs/{id}"))).await?.value;
        Ok(Some(job).filter(|job| job["done"] == true))
    }
}

/// The end of a job in the form of an event.
fn end_event(job: &Value) -> Value {
    let kind = format!("muster.job.{}", job["state"].as_str().unwrap_or_default());
    json!({
        "type": kind,
        "time": job["finished_at"],
        "subject": job["id"],
        "data": {
            "job_id": job["id"],
            "topic": job["topic"],
            "state": job["state"],
            "attempt": job["attempt"],
            "error_code": job["error"]["code"],
            "done": true,
        },
    })
}

fn show(format: Format, event: &Value) -> std::io::Result<()> {
    match format {
        Format::Json => output::try_line(event),
        Format::Table => output::try_line(line(event)),
    }
}

/// One event for people.
fn line(event: &Value) -> String {
    let (text, data) = (|value: &Value| output::cell(value), &event["data"]);
    let kind = text(&event["type"]);
    let kind = kind.strip_prefix("muster.").unwrap_or(&kind);
    let kind = kind.strip_prefix("job.").unwrap_or(kind);
    let more = match kind {
        "progress" => text(&data["progress"]),
        "gap" => text(&data["detail"]),
        _ if data["workflow"].is_string() => {
            format!("{}  {}", text(&data["step"]), text(&data["error_code"])).trim().to_owned()
        }
        _ => match data["attempt"].as_u64() {
            Some(n @ 1..) => format!("attempt {n}  {}", text(&data["error_code"])),
            _ => String::new(),
        },
    };
    // A run has a workflow where a job has a topic.
    let of = if data["workflow"].is_string() { &data["workflow"] } else { &data["topic"] };
    let (time, id, of) = (text(&event["time"]), text(&event["subject"]), text(of));
    format!("{time:<24}  {kind:<11}  {id}  {of}  {more}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_one_line_an_event() {
        let failed = json!({"time": "2026-11-16T08:00:00.250Z", "type": "muster.job.failed", "subject": "id-1",
            "data": {"topic": "mail", "attempt": 2, "error_code": "boom", "done": true}});
        assert_eq!(line(&failed), "2026-11-16T08:00:00.250Z  failed       id-1  mail  attempt 2  boom");
        let pending = json!({"time": "t", "type": "muster.job.pending", "subject": "id-1",
            "data": {"topic": "mail", "attempt": 0}});
        assert_eq!(line(&pending), format!("{:<24}  pending      id-1  mail", "t"));
        let step = json!({"time": "t", "type": "muster.step.failed", "subject": "run-1",
            "data": {"workflow": "order", "step": "charge", "error_code": "boom", "done": true}});
        assert_eq!(line(&step), format!("{:<24}  step.failed  run-1  order  charge  boom", "t"));
    }

    #[test]
    fn a_job_that_has_ended_already_is_shown_like_its_last_event() {
        let job = json!({"id": "id-1", "topic": "mail", "state": "failed", "done": true, "attempt": 2,
            "finished_at": "2026-11-16T08:00:00.250Z", "error": {"code": "boom"}});
        assert_eq!(line(&end_event(&job)), "2026-11-16T08:00:00.250Z  failed       id-1  mail  attempt 2  boom");
    }
}
