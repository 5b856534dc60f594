//! `muster operation`, and what `muster job bulk`, `muster dlq retry` and `muster run bulk` share: one action on every job
//! or run that matches a filter, carried out by the gateways. `--wait` follows it to its end.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Caller;
use crate::{
    api::{Answer, Call},
    outcome::{Code, Failure},
    output::{self, Format, cell},
};

/// How often `--wait` asks.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Subcommand, Debug)]
pub(crate) enum Operation {
    /// List bulk operations, newest first
    List {
        /// Maximum number of operations, up to 500
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show the progress of a bulk operation
    Get {
        /// The operation's id
        id: String,
    },
    /// Cancel a bulk operation; jobs that it has changed stay changed
    Cancel {
        /// The operation's id
        id: String,
    },
}

/// Which jobs, how fast, and whether to wait
#[derive(Args, Debug)]
pub(crate) struct Selection {
    /// Only jobs in one of these states
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,

    /// Only jobs of this topic
    #[arg(long)]
    topic: Option<String>,

    /// Only jobs with this label
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = super::label::label)]
    labels: Vec<(String, String)>,

    /// Only jobs that ended with this error code
    #[arg(long)]
    error_code: Option<String>,

    /// Only jobs that this worker runs or ran
    #[arg(long)]
    worker: Option<String>,

    /// Only jobs of this run of a workflow
    #[arg(long = "run", value_name = "ID")]
    run_id: Option<String>,

    /// Only jobs created after this time, like 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,

    /// Only jobs created before this time
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,

    /// Only jobs that ended after this time
    #[arg(long, value_name = "TIME")]
    finished_after: Option<String>,

    /// Only jobs that ended before this time
    #[arg(long, value_name = "TIME")]
    finished_before: Option<String>,

    #[command(flatten)]
    pace: Pace,
}

/// How fast, how many, and whether to wait
#[derive(Args, Debug)]
pub(super) struct Pace {
    /// Change nothing, only count
    #[arg(long)]
    dry_run: bool,

    /// Jobs or runs per second, up to 5000 [default: 100]
    #[arg(long, value_name = "N")]
    rate: Option<u32>,

    /// Maximum number of jobs or runs
    #[arg(long, value_name = "N")]
    canary: Option<u64>,

    /// Wait until the operation has ended
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
}

impl Operation {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Operation::List { limit } => {
                let answer = ask(caller, &Call::get("/operations").query("limit", limit.to_string())).await?;
                match caller.format {
                    Format::Json => output::line(answer.text),
                    Format::Table => table(answer.value["items"].as_array().map(Vec::as_slice).unwrap_or_default()),
                }
            }
            Operation::Get { id } => {
                shown(caller, &ask(caller, &Call::get(format!("/operations/{}", checked(&id)?))).await?);
            }
            Operation::Cancel { id } => {
                let call = Call::post(format!("/operations/{}/cancel", checked(&id)?), "").repeatable();
                shown(caller, &ask(caller, &call).await?);
            }
        }
        Ok(())
    }
}

impl Pace {
    /// Requests this action on everything that the filter takes. `path` is that of the kind of object.
    pub(super) async fn run(
        self,
        path: &str,
        action: &str,
        filter: Map<String, Value>,
        caller: &Caller,
    ) -> anyhow::Result<()> {
        let body = json!({
            "action": action,
            "filter": filter,
            "dry_run": self.dry_run,
            "rate_per_s": self.rate,
            "canary": self.canary,
        });
        let call = Call::post(path, body.to_string()).idempotency_key(Uuid::new_v4().to_string());
        let mut answer = ask(caller, &call).await?;
        if self.dry_run {
            match caller.format {
                Format::Json => output::line(answer.text),
                Format::Table => outlook(&answer.value),
            }
            return Ok(());
        }
        let id = cell(&answer.value["id"]);
        while self.wait && answer.value["done"] != json!(true) {
            tokio::time::sleep(LOOK).await;
            answer = ask(caller, &Call::get(format!("/operations/{id}"))).await?;
        }
        shown(caller, &answer);
        match answer.value["status"].as_str() {
            Some("failed") => Err(Failure::new(format!("operation {id} failed")).with_code(Code::Error).into()),
            _ => Ok(()),
        }
    }
}

impl Selection {
    /// Requests this action on the selected jobs.
    pub(crate) async fn run(self, action: &str, caller: &Caller) -> anyhow::Result<()> {
        let filter = self.filter();
        self.pace.run("/jobs/bulk", action, filter, caller).await
    }

    fn filter(&self) -> Map<String, Value> {
        let texts = [
            ("topic", &self.topic),
            ("error_code", &self.error_code),
            ("worker", &self.worker),
            ("run_id", &self.run_id),
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
            ("finished_after", &self.finished_after),
            ("finished_before", &self.finished_before),
        ];
        filter(&self.state, &self.labels, texts)
    }
}

/// A filter in the form of the API, with what was given.
pub(super) fn filter<'a>(
    states: &[String],
    labels: &[(String, String)],
    texts: impl IntoIterator<Item = (&'a str, &'a Option<String>)>,
) -> Map<String, Value> {
    let mut filter = Map::new();
    if !states.is_empty() {
        filter.insert("state".into(), json!(states));
    }
    if !labels.is_empty() {
        let labels: Map<String, Value> = labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        filter.insert("labels".into(), labels.into());
    }
    filter.extend(texts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?)))));
    filter
}

async fn ask(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    caller.api.call(call).await.map_err(Failure::from)
}

/// Checks an id, because it becomes part of a path.
fn checked(id: &str) -> Result<&str, Failure> {
    match id.parse::<Uuid>() {
        Ok(_) => Ok(id),
        Err(fault) => Err(Failure::usage(format!("{id:?} is not the id of an operation")).hint(fault.to_string())),
    }
}

fn shown(caller: &Caller, answer: &Answer) {
    if caller.format == Format::Json {
        output::line(&answer.text);
        return;
    }
    let (operation, counts) = (&answer.value, &answer.value["counts"]);
    output::facts(&[
        ("id", cell(&operation["id"])),
        ("action", cell(&operation["action"])),
        ("filter", cell(&operation["filter"])),
        ("status", cell(&operation["status"])),
        ("matched", cell(&counts["matched"])),
        ("done", cell(&counts["done"])),
        ("skipped", cell(&counts["skipped"])),
        ("failed", cell(&counts["failed"])),
        ("rate", cell(&operation["rate_per_s"])),
        ("canary", cell(&operation["canary"])),
        ("carried by", cell(&operation["carried_by"])),
        ("last error", cell(&operation["last_error"])),
        ("created", cell(&operation["created_at"])),
        ("finished", cell(&operation["finished_at"])),
    ]);
}

fn outlook(found: &Value) {
    let more = if found["more"] == json!(true) { " or more" } else { "" };
    let skipped = found["skipped"].as_u64().unwrap_or_default();
    let retried = if skipped > 0 { format!(", of which {skipped} already have a retry") } else { String::new() };
    output::line(format_args!("{}{more} match{retried}; nothing was changed", cell(&found["matched"])));
}

fn table(operations: &[Value]) {
    let row = |operation: &Value| {
        let counts = &operation["counts"];
        vec![
            cell(&operation["id"]),
            cell(&operation["action"]),
            cell(&operation["status"]),
            cell(&counts["matched"]),
            cell(&counts["done"]),
            cell(&counts["skipped"]),
            cell(&counts["failed"]),
            cell(&operation["created_at"]),
        ]
    };
    let headings = ["ID", "ACTION", "STATUS", "MATCHED", "DONE", "SKIPPED", "FAILED", "CREATED"];
    output::rows(&headings, operations.iter().map(row));
}
