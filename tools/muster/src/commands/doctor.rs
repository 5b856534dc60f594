//! `muster doctor`: whether Redis and NATS are configured so that Muster can keep its promises, as a gateway sees
//! them.

use clap::Args;
use serde_json::Value;

use super::Caller;
use crate::{
    api::Call,
    outcome::Failure,
    output::{self, Format, cell},
};

/// Check that Redis and NATS are configured so that no job can be lost; exit code 1 if not
#[derive(Args, Debug)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let answer = caller.api.call(&Call::get("/doctor")).await.map_err(Failure::from)?;
        let findings = answer.value["items"].as_array().cloned().unwrap_or_default();
        match caller.format {
            Format::Json => output::line(&answer.text),
            Format::Table => {
                let row =
                    |it: &Value| ["level", "check", "place", "found", "mend"].map(|name| cell(&it[name])).to_vec();
                output::rows(&["LEVEL", "CHECK", "PLACE", "FOUND", "REMEDY"], findings.iter().map(row));
            }
        }
        match findings.iter().filter(|it| it["level"] == "error").count() {
            0 => Ok(()),
            n => Err(Failure::new(format!("{n} of {} checks failed", findings.len())).hint("docs/operate.md").into()),
        }
    }
}
