//! `muster run start`. A start without an idempotency key gets a random one, so that a repeat after a lost answer starts
//! no second run. Inputs are sent exactly as written.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context;
use clap::Args;
use muster_domain::WorkflowName;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Caller, ask, shown};
use crate::{
    api::Call,
    commands::{ended::What, label::label, value::value},
    outcome::Failure,
    output::{self, Format},
    spans,
};

/// Start a run of a workflow, and print its id
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct Start {
    /// The workflow
    workflow: String,

    /// The input: JSON, or @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    input: Option<String>,

    /// A label, for lists and filters
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,

    /// The version of the workflow [default: the latest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,

    /// Idempotency key: a repeat with the same key starts no second run
    #[arg(long, alias = "idempotency-key", value_name = "KEY")]
    key: Option<String>,

    /// Wait for its end; exit code 4 if it does not succeed
    #[arg(long)]
    wait: bool,

    /// Give up waiting after this long
    #[arg(long, requires = "wait", value_parser = spans::parse, value_name = "DURATION")]
    timeout: Option<Duration>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
}

impl Start {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let name = WorkflowName::parse(&self.workflow).map_err(|fault| Failure::usage(fault.to_string()))?;
        let input = self.input.as_deref().map(|given| value("input", given)).transpose()?;
        let body = serde_json::to_string(&self.body(input.as_deref()))?;
        let key = self.key.unwrap_or_else(|| Uuid::new_v4().to_string());
        let call = Call::post(format!("/workflows/{}/runs", name.as_str()), body).idempotency_key(key);
        let mut answer = ask(caller, &call).await?;
        let id = answer.value["id"].as_str().context("the answer has no run id")?.to_owned();
        if !self.wait {
            match caller.format {
                Format::Json => output::line(&answer.text),
                // The id alone, so that a script can keep it.
                Format::Table => {
                    output::line(&id);
                    eprintln!("hint:  `muster run watch {id}` follows it");
                }
            }
            return Ok(());
        }
        if answer.value["done"] != true {
            answer = What::Run.until_done(caller, &id, self.timeout).await?;
        }
        shown(caller, &answer);
        Ok(What::Run.judged(&answer.value)?)
    }

    fn body<'a>(&'a self, input: Option<&'a RawValue>) -> Body<'a> {
        let labels = self.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Body { input, labels, version: self.version }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        start: Start,
    }

    #[test]
    fn a_start_carries_only_what_was_said_and_inputs_verbatim() {
        let body = |line: &[&str]| {
            let start = Line::parse_from(line).start;
            let input = start.input.as_deref().map(|given| value("input", given).unwrap());
            serde_json::to_string(&start.body(input.as_deref())).unwrap()
        };
        assert_eq!(body(&["x", "order"]), "{}");
        let line = ["x", "order", "--input", r#"{"b":1.50,"a":2}"#, "--label", "k=v", "--version", "3"];
        assert_eq!(body(&line), r#"{"input":{"b":1.50,"a":2},"labels":{"k":"v"},"version":3}"#);
    }
}
