//! `muster worker list`: the workers of this tenant, as every gateway sees them.

use serde_json::Value;

use crate::{
    api::Call,
    commands::Caller,
    outcome::Failure,
    output::{self, Format, cell},
};

pub(super) async fn run(caller: &Caller) -> anyhow::Result<()> {
    let answer = caller.api.call(&Call::get("/workers")).await.map_err(Failure::from)?;
    if caller.format == Format::Json {
        output::line(answer.text);
        return Ok(());
    }
    let row = |worker: &Value| {
        let topics = worker["topics"].as_array().map(|all| all.iter().map(cell).collect::<Vec<_>>());
        let labels = worker["labels"].as_object().into_iter().flatten();
        vec![
            cell(&worker["id"]),
            topics.unwrap_or_default().join(","),
            format!("{}/{}", cell(&worker["busy"]), cell(&worker["slots"])),
            if worker["healthy"] == true { "yes".to_owned() } else { "no".to_owned() },
            cell(&worker["version"]),
            labels.map(|(name, value)| format!("{name}={}", cell(value))).collect::<Vec<_>>().join(","),
            cell(&worker["last_seen"]),
        ]
    };
    let workers = answer.value["items"].as_array().cloned().unwrap_or_default();
    output::rows(&["ID", "TOPICS", "BUSY", "HEALTHY", "VERSION", "LABELS", "LAST SEEN"], workers.iter().map(row));
    Ok(())
}
