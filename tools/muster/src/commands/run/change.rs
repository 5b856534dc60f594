//! Steers a run: signals, cancel, rerun, steps that are ended by hand. A call carries an idempotency key, so that a
//! repeat after a lost answer has no further effect; to end a step needs none, because a step ends once.

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Caller, ask, filter::Filter, path, show, shown};
use crate::{
    api::{Call, part},
    commands::{operation::Pace, value::value},
    output::{self, Format},
};

/// Asks for an operation that needs no words.
pub(super) async fn plain(caller: &Caller, path: &str) -> anyhow::Result<()> {
    shown(caller, &ask(caller, &once(path, "")).await?);
    Ok(())
}

fn once(path: impl Into<String>, body: impl Into<String>) -> Call {
    Call::post(path, body).idempotency_key(Uuid::new_v4().to_string())
}

/// Send a signal to a run, which keeps it until a step reads it
#[derive(Args, Debug)]
pub(crate) struct Signal {
    /// The run's id
    id: String,

    /// The name of the signal
    name: String,

    /// The message: JSON, or @FILE, or - for standard input [default: null]
    #[arg(long, value_name = "JSON")]
    data: Option<String>,

    /// Idempotency key: a repeat with the same key is the same signal
    #[arg(long, alias = "idempotency-key", value_name = "KEY")]
    key: Option<String>,
}

impl Signal {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let data = self.data.as_deref().map(|given| value("data", given)).transpose()?;
        let path = path(&self.id, &format!("/signals/{}", part(&self.name)))?;
        let call = once(path, data.as_deref().map_or("null", RawValue::get));
        let call = self.key.into_iter().fold(call, Call::idempotency_key);
        shown(caller, &ask(caller, &call).await?);
        Ok(())
    }
}

/// Cancel a run: what its steps did is compensated
#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// The run's id
    id: String,

    /// Run no compensation
    #[arg(long)]
    no_compensate: bool,

    /// Reason
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Serialize)]
struct CancelBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    compensate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Cancel {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let body = CancelBody { compensate: self.no_compensate.then_some(false), reason: self.reason.as_deref() };
        let call = once(path(&self.id, "/cancel")?, serde_json::to_string(&body)?);
        shown(caller, &ask(caller, &call).await?);
        Ok(())
    }
}

/// Run an ended run again from a step on, as a new run
///
/// The new run takes over the results of every step that ended well, is neither this step nor behind it, and was not
/// undone. A step whose compensation began runs again, with the steps behind it. Look with --dry-run.
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct Rerun {
    /// The run's id
    id: String,

    /// The step that runs again, with every step behind it
    #[arg(long, value_name = "STEP", required_unless_present = "failed_items")]
    from: Option<String>,

    /// The for-each whose items run again that did not succeed, with every step behind it
    #[arg(long, value_name = "STEP", conflicts_with = "from")]
    failed_items: Option<String>,

    /// Another input: JSON, or @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    input: Option<String>,

    /// Another version of the workflow
    #[arg(long, value_name = "N")]
    version: Option<u32>,

    /// Start nothing, only say what would run again
    #[arg(long)]
    dry_run: bool,

    /// Idempotency key: a repeat with the same key starts no second run
    #[arg(long, alias = "idempotency-key", value_name = "KEY")]
    key: Option<String>,
}

#[derive(Serialize)]
struct RerunBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_items: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

impl Rerun {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let body = RerunBody {
            from: self.from.as_deref(),
            failed_items: self.failed_items.as_deref(),
            input: self.input.as_deref().map(|given| value("input", given)).transpose()?,
            version: self.version,
            dry_run: self.dry_run,
        };
        let call = once(path(&self.id, "/rerun")?, serde_json::to_string(&body)?);
        let answer = ask(caller, &self.key.into_iter().fold(call, Call::idempotency_key)).await?;
        match (self.dry_run, caller.format) {
            (true, Format::Table) => show::outlook(&answer.value),
            (true, Format::Json) => output::line(answer.text),
            (false, _) => shown(caller, &answer),
        }
        Ok(())
    }
}

/// Cancel, pause or rerun every run that matches; a rerun begins at the step that failed
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct Bulk {
    /// The action
    #[arg(value_parser = ["cancel", "pause", "rerun"])]
    action: String,

    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    pace: Pace,
}

impl Bulk {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        self.pace.run("/runs/bulk", &self.action, self.filter.body(), caller).await
    }
}

/// Complete a step that is stuck, with a result
#[derive(Args, Debug)]
pub(crate) struct Complete {
    /// The run's id
    id: String,

    /// The step
    step: String,

    /// The result: JSON, or @FILE, or - for standard input [default: null]
    #[arg(long, value_name = "JSON")]
    result: Option<String>,

    /// Reason
    #[arg(long)]
    reason: Option<String>,
}

/// Skip a step that is stuck
#[derive(Args, Debug)]
pub(crate) struct Skip {
    /// The run's id
    id: String,

    /// The step
    step: String,

    /// Reason
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Serialize)]
struct StepBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Complete {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let output = self.result.as_deref().map(|given| value("result", given)).transpose()?;
        let body = StepBody { output, reason: self.reason.as_deref() };
        end_step(caller, &self.id, &self.step, "complete", &body).await
    }
}

impl Skip {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let body = StepBody { output: None, reason: self.reason.as_deref() };
        end_step(caller, &self.id, &self.step, "skip", &body).await
    }
}

async fn end_step(caller: &Caller, id: &str, step: &str, verb: &str, body: &StepBody<'_>) -> anyhow::Result<()> {
    let path = path(id, &format!("/steps/{}/{verb}", part(step)))?;
    let call = Call::post(path, serde_json::to_string(body)?).repeatable();
    shown(caller, &ask(caller, &call).await?);
    Ok(())
}
