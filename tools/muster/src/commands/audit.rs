//! `muster audit`: who did what, and whether the log is unchanged.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Caller;
use crate::{
    api::Call,
    outcome::Failure,
    output::{self, Format, cell},
};

#[derive(Subcommand, Debug)]
pub(crate) enum Audit {
    List(List),
    /// Verify the chain of hashes; if it is broken, name the entry and exit with 1
    Verify,
}

/// List entries, newest first
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only this action, like job_retry or key_create
    #[arg(long)]
    action: Option<String>,

    /// Only actions of this actor: system, or the id of a key
    #[arg(long)]
    actor: Option<String>,

    /// Only actions on this job
    #[arg(long = "job", value_name = "ID")]
    job_id: Option<String>,

    /// Only entries at or after this time, like 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    after: Option<String>,

    /// Only entries before this time
    #[arg(long, value_name = "TIME")]
    before: Option<String>,

    /// Maximum number of entries
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl Audit {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Audit::List(list) => list.run(caller).await,
            Audit::Verify => verify(caller).await,
        }
    }
}

impl List {
    async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let (mut entries, mut cursor) = (Vec::new(), None::<String>);
        while entries.len() < self.limit {
            let mut call = Call::get("/audit").query("limit", (self.limit - entries.len()).min(500).to_string());
            let asked = [
                ("action", &self.action),
                ("actor", &self.actor),
                ("job_id", &self.job_id),
                ("after", &self.after),
                ("before", &self.before),
                ("cursor", &cursor),
            ];
            for (name, value) in asked {
                if let Some(value) = value {
                    call = call.query(name, value);
                }
            }
            let page = caller.api.call(&call).await.map_err(Failure::from)?.value;
            entries.extend(page["items"].as_array().cloned().unwrap_or_default());
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        if caller.format == Format::Json {
            output::line(serde_json::json!({ "items": entries, "next_cursor": cursor }));
            return Ok(());
        }
        let about = |it: &Value| if it["job_id"].is_string() { cell(&it["job_id"]) } else { cell(&it["target"]) };
        let row = |it: &Value| {
            let change = [cell(&it["old_status"]), cell(&it["new_status"])].join(" > ");
            vec![
                cell(&it["number"]),
                cell(&it["at"]),
                cell(&it["actor"]),
                cell(&it["action"]),
                cell(&it["tenant"]),
                about(it),
                change.trim_matches([' ', '>']).to_owned(),
                cell(&it["attempt"]),
            ]
        };
        output::rows(&["NO", "AT", "ACTOR", "ACTION", "TENANT", "ABOUT", "STATUS", "ATTEMPT"], entries.iter().map(row));
        Ok(())
    }
}

async fn verify(caller: &Caller) -> anyhow::Result<()> {
    let mut call = Call::get("/audit/verify");
    let verdict = loop {
        let answer = caller.api.call(&call).await.map_err(Failure::from)?;
        match answer.value["next_cursor"].as_str() {
            Some(cursor) => call = Call::get("/audit/verify").query("cursor", cursor),
            None => break answer,
        }
    };
    let found = &verdict.value;
    if caller.format == Format::Json {
        output::line(&verdict.text);
    } else if found["valid"] == true {
        output::facts(&[
            ("entries", cell(&found["checked"])),
            ("numbers", format!("{} to {}", cell(&found["first"]), cell(&found["last"]))),
            ("hash", cell(&found["hash"])),
        ]);
    }
    if found["valid"] == true {
        return Ok(());
    }
    let broken = &found["broken"];
    let words = format!(
        "the audit log is broken at number {} (id {}, entry {}): {}",
        cell(&broken["number"]),
        cell(&broken["id"]),
        cell(&broken["entry"]),
        cell(&broken["reason"])
    );
    Err(Failure::new(words).into())
}
