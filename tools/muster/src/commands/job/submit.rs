//! `muster job submit` and `retry`. A submit without an idempotency key gets a random one, so that a repeat after a
//! lost answer creates no second job. Payloads are sent exactly as written.

mod ndjson;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use muster_domain::Priority;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Caller, ask, checked, shown};
use crate::{
    api::Call,
    commands::{ended::What, label::label, value::value},
    spans,
};

/// Submit a job, or many from a file
#[derive(Args, Debug)]
pub(crate) struct Submit {
    /// The topic
    #[arg(long, required_unless_present = "file")]
    topic: Option<String>,

    /// JSON, or @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    #[command(flatten)]
    more: More,

    /// Idempotency key: a repeat with the same key creates no second job
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// Wait for its end; exit code 4 if it does not succeed
    #[arg(long)]
    wait: bool,

    /// Give up waiting after this long
    #[arg(long, requires = "wait", value_parser = spans::parse, value_name = "DURATION")]
    timeout: Option<Duration>,

    /// A file with one job per line, as JSON objects of the API; - for standard input
    #[arg(long, value_name = "NDJSON", conflicts_with_all = ["topic", "payload", "idempotency_key", "wait"])]
    file: Option<PathBuf>,
}

/// The other fields of a job.
#[derive(Args, Debug, Default)]
struct More {
    /// critical, high, normal or low
    #[arg(long, value_parser = priority)]
    priority: Option<&'static str>,

    /// A label, for lists and filters
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,

    /// A label that the worker must provide
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    requires: Vec<(String, String)>,

    /// Jobs with the same key run one at a time
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,

    /// Start no earlier than this long from now
    #[arg(long, value_parser = spans::parse, value_name = "DURATION", conflicts_with = "run_at")]
    delay: Option<Duration>,

    /// Start no earlier than this time, like 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    run_at: Option<String>,

    /// Start no later than this long from now
    #[arg(long, value_parser = spans::parse, value_name = "DURATION")]
    start_within: Option<Duration>,

    /// The whole job must end within this long from now
    #[arg(long, value_parser = spans::parse, value_name = "DURATION")]
    expire_in: Option<Duration>,

    /// Maximum time of one attempt
    #[arg(long = "attempt-timeout", value_parser = spans::parse, value_name = "DURATION")]
    attempt_timeout: Option<Duration>,

    /// Maximum number of attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
}

#[derive(Serialize)]
struct Body<'a> {
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requires: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_within_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retries>,
}

#[derive(Serialize)]
struct Retries {
    max_attempts: u32,
}

fn pairs(given: &[(String, String)]) -> BTreeMap<&str, &str> {
    given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Submit {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        if let Some(file) = &self.file {
            return ndjson::submit(caller, file).await;
        }
        let payload = self.payload.as_deref().map(|given| value("payload", given)).transpose()?;
        let body = serde_json::to_string(&self.body(payload.as_deref()))?;
        let key = self.idempotency_key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let answer = ask(caller, &Call::post("/jobs", body).idempotency_key(key)).await?;
        if !self.wait {
            shown(caller, &answer);
            return Ok(());
        }
        let id = answer.value["id"].as_str().context("the answer has no job id")?;
        let ended = What::Job.until_done(caller, id, self.timeout).await?;
        shown(caller, &ended);
        Ok(What::Job.judged(&ended.value)?)
    }

    fn body<'a>(&'a self, payload: Option<&'a RawValue>) -> Body<'a> {
        let more = &self.more;
        Body {
            topic: self.topic.as_deref().unwrap_or_default(),
            payload,
            priority: more.priority,
            labels: pairs(&more.labels),
            requires: pairs(&more.requires),
            concurrency_key: more.concurrency_key.as_deref(),
            delay_ms: more.delay.map(spans::millis),
            run_at: more.run_at.as_deref(),
            start_within_ms: more.start_within.map(spans::millis),
            expire_in_ms: more.expire_in.map(spans::millis),
            timeout_ms: more.attempt_timeout.map(spans::millis),
            retry: more.max_attempts.map(|max_attempts| Retries { max_attempts }),
        }
    }
}

/// Retry an ended job, as a new job
#[derive(Args, Debug)]
pub(crate) struct Retry {
    /// The id of the job that ended
    id: String,

    /// Another payload: JSON, or @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Another topic
    #[arg(long)]
    topic: Option<String>,

    /// Another priority
    #[arg(long, value_parser = priority)]
    priority: Option<&'static str>,
}

#[derive(Serialize)]
struct Overrides<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'a str>,
}

impl Retry {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let body = Overrides {
            payload: self.payload.as_deref().map(|given| value("payload", given)).transpose()?,
            topic: self.topic.as_deref(),
            priority: self.priority,
        };
        // The new job's id derives from the old one, so a second call finds the job of the first.
        let path = format!("/jobs/{}/retry", checked(&self.id)?);
        let answer = ask(caller, &Call::post(path, serde_json::to_string(&body)?).repeatable()).await?;
        shown(caller, &answer);
        Ok(())
    }
}

fn priority(text: &str) -> Result<&'static str, String> {
    let words = || Priority::ALL.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(", ");
    Priority::parse(text).map(Priority::as_str).ok_or_else(|| format!("one of {}", words()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        submit: Submit,
    }

    #[test]
    fn a_submit_carries_only_what_was_said_and_payloads_verbatim() {
        let line = ["x", "--topic", "t", "--payload", r#"{"b":1.50,"a":12345678901234567890123}"#, "--delay", "2s"];
        let submit = Line::parse_from(line).submit;
        let payload = value("payload", submit.payload.as_deref().unwrap()).unwrap();
        let body = serde_json::to_string(&submit.body(Some(&payload))).unwrap();
        assert_eq!(body, r#"{"topic":"t","payload":{"b":1.50,"a":12345678901234567890123},"delay_ms":2000}"#);
    }

    #[test]
    fn priorities_are_read_or_refused() {
        assert_eq!(priority("high"), Ok("high"));
        assert_eq!(priority("urgent"), Err("one of critical, high, normal, low".into()));
    }
}
