//! `muster job list`: newest first, filtered by the gateway, page after page until there are enough.

use clap::Args;
use serde_json::{Value, json};

use super::{Caller, ask, show};
use crate::{
    api::Call,
    output::{self, Format, cell},
};

/// The most jobs on one page.
const PAGE: usize = 500;

/// List jobs, newest first
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only jobs in one of these states
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,

    /// Only jobs of this topic
    #[arg(long)]
    topic: Option<String>,

    /// Only jobs with this label
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = crate::commands::label::label)]
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

    /// Maximum number of jobs
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl List {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let (mut jobs, mut unreadable): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut cursor: Option<String> = None;
        while jobs.len() < self.limit {
            let mut call = self.call().query("limit", (self.limit - jobs.len()).min(PAGE).to_string());
            if let Some(cursor) = &cursor {
                call = call.query("cursor", cursor);
            }
            let mut page = ask(caller, &call).await?.value;
            if let Some(items) = page["items"].as_array_mut() {
                jobs.append(items);
            }
            if let Some(ids) = page["unreadable"].as_array_mut() {
                unreadable.append(ids);
            }
            // A short page is not the last one; only a missing cursor marks the last.
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        match caller.format {
            Format::Json => {
                let mut shown = json!({"items": jobs, "next_cursor": cursor});
                if !unreadable.is_empty() {
                    shown["unreadable"] = unreadable.into();
                }
                output::json(&shown);
            }
            Format::Table => {
                show::jobs(&jobs);
                for id in &unreadable {
                    output::line(format_args!("job {} cannot be read: see docs/errors/job_unreadable.md", cell(id)));
                }
            }
        }
        Ok(())
    }

    fn call(&self) -> Call {
        let mut call = Call::get("/jobs");
        if !self.state.is_empty() {
            call = call.query("state", self.state.join(","));
        }
        for (name, value) in &self.labels {
            call = call.query(format!("label.{name}"), value);
        }
        let filters = [
            ("topic", &self.topic),
            ("error_code", &self.error_code),
            ("worker", &self.worker),
            ("run_id", &self.run_id),
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
            ("finished_after", &self.finished_after),
            ("finished_before", &self.finished_before),
        ];
        for (name, value) in filters {
            if let Some(value) = value {
                call = call.query(name, value);
            }
        }
        call
    }
}
