//! `muster status`: whether each gateway answers, and the processes of a local stack.

use clap::Args;
use serde_json::{Value, json};

use super::Caller;
use crate::{
    api::{Call, CallError},
    outcome::Failure,
    output::{self, Format, cell},
    stack::{Process, Stack},
};

/// A gateway's address and its answer.
type Said = (String, Result<Value, CallError>);

/// Show whether the stack is up
#[derive(Args, Debug)]
pub(crate) struct Status {}

impl Status {
    pub(crate) async fn run(self, caller: &Caller, stack: Option<Stack>) -> anyhow::Result<()> {
        let mut gateways: Vec<Said> = Vec::new();
        for api in caller.api.each() {
            let said = api.call(&Call::get("/status")).await.map(|answer| answer.value);
            gateways.push((api.url().to_owned(), said));
        }
        let processes = stack.map(|stack| stack.processes).unwrap_or_default();
        match caller.format {
            Format::Json => {
                let shown = |(url, said): &Said| match said {
                    Ok(value) => json!({"url": url, "answer": value}),
                    Err(error) => json!({"url": url, "error": error.to_string()}),
                };
                output::json(&json!({
                    "gateways": gateways.iter().map(shown).collect::<Vec<_>>(),
                    "processes": processes,
                }));
            }
            Format::Table => show(&gateways, &processes),
        }
        if gateways.iter().all(|(_, said)| said.is_err()) {
            let error = gateways.into_iter().find_map(|(_, said)| said.err());
            return Err(error.map_or_else(|| Failure::new("no gateway"), Failure::from).into());
        }
        Ok(())
    }
}

fn show(gateways: &[Said], processes: &[Process]) {
    let row = |(url, said): &Said| match said {
        Ok(value) => vec![url.clone(), cell(&value["status"]), cell(&value["instance"]), cell(&value["version"])],
        Err(error) => vec![url.clone(), error.to_string(), String::new(), String::new()],
    };
    output::rows(&["GATEWAY", "STATUS", "INSTANCE", "VERSION"], gateways.iter().map(row));
    if processes.is_empty() {
        return;
    }
    output::line("");
    let row = |p: &Process| {
        let alive = std::path::Path::new(&format!("/proc/{}", p.pid)).exists();
        let place = [&p.http, &p.grpc, &p.addr].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        let state = if alive { "up" } else { "gone" };
        vec![p.name.clone(), p.pid.to_string(), state.to_owned(), place, p.admin.clone().unwrap_or_default()]
    };
    output::rows(&["PROCESS", "PID", "STATE", "ADDRESS", "ADMIN"], processes.iter().map(row));
}
