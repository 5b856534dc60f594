//! `muster dlq`: jobs that ended badly, why, and their retries.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Caller, operation::Selection};
use crate::{
    api::{Answer, Call},
    outcome::Failure,
    output::{self, Format, cell},
};

/// The most dead letters on one page.
const PAGE: usize = 500;

#[derive(Subcommand, Debug)]
pub(crate) enum Dlq {
    List(List),
    /// Count the dead letters by cause, topic, error code and state
    Summary(Filter),
    /// Delete a dead letter: an ended job, or a message that could not be read
    Delete {
        /// Its id, as `list` shows it
        id: String,
    },
    /// Retry the dead letters that match: each becomes a new job
    Retry(Selection),
}

/// List dead letters, newest first
#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,

    /// Messages that could not be read, instead of jobs; needs a key for all tenants
    #[arg(long, conflicts_with_all = ["state", "topic", "error_code"])]
    messages: bool,

    /// Maximum number of dead letters
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

/// Which of them
#[derive(Args, Debug)]
pub(crate) struct Filter {
    /// Only jobs in one of these states
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,

    /// Only jobs of this topic
    #[arg(long)]
    topic: Option<String>,

    /// Only jobs that ended with this error code
    #[arg(long)]
    error_code: Option<String>,
}

impl Dlq {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Dlq::List(list) => list.run(caller).await,
            Dlq::Summary(filter) => {
                let answer = ask(caller, &filter.onto(Call::get("/dlq/summary"))).await?;
                match caller.format {
                    Format::Json => output::line(answer.text),
                    Format::Table => summary(&answer.value),
                }
                Ok(())
            }
            Dlq::Delete { id } => {
                ask(caller, &Call::delete(place_of(&id)?)).await?;
                output::line(format_args!("{id} is gone"));
                Ok(())
            }
            Dlq::Retry(selection) => selection.run("retry", caller).await,
        }
    }
}

impl List {
    async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let mut found: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        while found.len() < self.limit {
            let mut call = self.filter.onto(Call::get("/dlq"));
            call = call.query("limit", (self.limit - found.len()).min(PAGE).to_string());
            if self.messages {
                call = call.query("kind", "message");
            }
            if let Some(cursor) = &cursor {
                call = call.query("cursor", cursor);
            }
            let mut page = ask(caller, &call).await?.value;
            if let Some(items) = page["items"].as_array_mut() {
                found.append(items);
            }
            // A short page is not the last one; only a missing cursor marks the last.
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        match (caller.format, self.messages) {
            (Format::Json, _) => output::json(&json!({"items": found, "next_cursor": cursor})),
            (Format::Table, true) => {
                let row =
                    |item: &Value| ["id", "subject", "size", "found_at", "reason"].map(|f| cell(&item[f])).to_vec();
                output::rows(&["ID", "SUBJECT", "SIZE", "FOUND", "REASON"], found.iter().map(row));
            }
            (Format::Table, false) => jobs(&found),
        }
        Ok(())
    }
}

impl Filter {
    fn onto(&self, mut call: Call) -> Call {
        if !self.state.is_empty() {
            call = call.query("state", self.state.join(","));
        }
        for (name, value) in [("topic", &self.topic), ("error_code", &self.error_code)] {
            if let Some(value) = value {
                call = call.query(name, value);
            }
        }
        call
    }
}

async fn ask(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    caller.api.call(call).await.map_err(Failure::from)
}

/// The path for deleting a dead letter: a job has a job id, a message has two numbers with a dash.
fn place_of(id: &str) -> Result<String, Failure> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match id.split_once('-') {
        Some((at, sequence)) if number(at) && number(sequence) => Ok(format!("/dlq/messages/{id}")),
        _ if id.parse::<muster_domain::JobId>().is_ok() => Ok(format!("/jobs/{id}")),
        _ => Err(Failure::usage(format!("{id:?} is neither the id of a job nor of a message")).hint("muster dlq list")),
    }
}

fn jobs(found: &[Value]) {
    let row = |job: &Value| {
        vec![
            cell(&job["id"]),
            cell(&job["topic"]),
            cell(&job["state"]),
            cell(&job["finished_at"]),
            cell(&job["reason"]),
            cell(&job["error"]["code"]),
            cell(&job["error"]["message"]),
            cell(&job["retried_as"]),
        ]
    };
    let headings = ["ID", "TOPIC", "STATE", "FINISHED", "REASON", "ERROR", "MESSAGE", "RETRIED AS"];
    output::rows(&headings, found.iter().map(row));
}

fn summary(answer: &Value) {
    let causes = answer["by_cause"].as_array().cloned().unwrap_or_default();
    let row = |cause: Value| {
        let of = if cause["kind"] == "job" { &cause["state"] } else { &cause["subject"] };
        vec![cell(&cause["cause"]), cell(of), cell(&cause["count"]), cell(&cause["last_seen"]), cell(&cause["reason"])]
    };
    output::rows(&["CAUSE", "OF", "COUNT", "LAST SEEN", "REASON"], causes.into_iter().map(row));
    output::line("");
    let tables = [("by_topic", "topic"), ("by_error_code", "error_code"), ("by_state", "state")];
    let rows = tables.into_iter().flat_map(|(table, name)| {
        let counts = answer[table].as_array().cloned().unwrap_or_default();
        counts.into_iter().map(move |count| vec![name.replace('_', " "), cell(&count[name]), cell(&count["count"])])
    });
    output::rows(&["BY", "WHICH", "JOBS"], rows);
    let more = if answer["more"] == json!(true) { " (the most recent; there are more)" } else { "" };
    output::line(format_args!("{} jobs{more}", cell(&answer["counted"])));
    if let Some(messages) = answer["messages"].as_u64().filter(|n| *n > 0) {
        output::line(format_args!("{messages} messages that could not be read: muster dlq list --messages"));
    }
}
