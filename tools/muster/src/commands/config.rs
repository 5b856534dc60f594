//! `muster config`: settings of all replicas that can change while they run.

use clap::Subcommand;
use serde_json::Value;

use super::{Caller, topic::apply};
use crate::{
    api::{Call, CallError},
    outcome::Failure,
    output::{self, Format, cell},
};

/// How often a write is tried again after another write came first.
const TRIES: usize = 5;

#[derive(Subcommand, Debug)]
pub(crate) enum Config {
    /// Show the run-time settings
    Get,
    /// Change some run-time settings: `rate_limit_rps=500 topics=`
    Set {
        /// Name and value; without a value, each replica uses the setting from its start
        #[arg(required = true, value_name = "NAME=VALUE")]
        changes: Vec<String>,
    },
    /// Show every setting of a gateway, and the source of its value
    Effective,
}

impl Config {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Config::Get => {
                let answer = caller.api.call(&Call::get("/config")).await.map_err(Failure::from)?;
                show(caller, &answer.text, &answer.value);
                Ok(())
            }
            Config::Set { changes } => set(caller, &changes).await,
            Config::Effective => effective(caller).await,
        }
    }
}

async fn set(caller: &Caller, changes: &[String]) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let mut read = caller.api.call(&Call::get("/config")).await.map_err(Failure::from)?.value;
        let mut settings = read["settings"].take();
        for change in changes {
            apply(&mut settings, change)?;
        }
        let write = Call::put("/config", settings.to_string()).if_match(read["version"].as_u64().unwrap_or(0));
        match caller.api.call(&write).await {
            Ok(answer) => {
                show(caller, &answer.text, &answer.value);
                return Ok(());
            }
            Err(CallError::Refused(problem)) if problem.status == 412 => {}
            Err(error) => return Err(Failure::from(error).into()),
        }
    }
    Err(Failure::new("other writers keep changing the settings; nothing was written").hint("try again").into())
}

async fn effective(caller: &Caller) -> anyhow::Result<()> {
    let answer = caller.api.call(&Call::get("/config/effective")).await.map_err(Failure::from)?;
    if caller.format == Format::Json {
        output::line(answer.text);
        return Ok(());
    }
    let row = |of: &Value, it: &Value| {
        let live = if it["live"] == true { "yes".to_owned() } else { String::new() };
        let replica = cell(&of["instance"]);
        vec![cell(&it["name"]), cell(&it["value"]), cell(&it["source"]), live, cell(&it["variable"]), replica]
    };
    let others = answer.value["others"].as_array().map_or(&[][..], Vec::as_slice);
    let replicas = std::iter::once(&answer.value).chain(others);
    let rows = replicas.flat_map(|of| of["items"].as_array().into_iter().flatten().map(move |it| row(of, it)));
    output::rows(&["NAME", "VALUE", "SOURCE", "RUN TIME", "VARIABLE", "REPLICA"], rows);
    Ok(())
}

fn show(caller: &Caller, text: &str, told: &Value) {
    if caller.format == Format::Json {
        output::line(text);
        return;
    }
    let values = told["settings"].as_object().cloned().unwrap_or_default();
    output::rows(&["NAME", "VALUE"], values.iter().map(|(name, value)| vec![name.clone(), cell(value)]));
}
