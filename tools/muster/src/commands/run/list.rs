//! `muster run list`: newest first, filtered by the gateway, page after page until there are enough.

use clap::Args;
use serde_json::{Value, json};

use super::{Caller, ask, show};
use crate::{
    api::Call,
    output::{self, Format, cell},
};

/// The most runs on one page.
const PAGE: usize = 500;

/// List runs, newest first
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct List {
    /// Only runs of this workflow
    #[arg(long)]
    workflow: Option<String>,

    /// Only runs of this version of their workflow
    #[arg(long, value_name = "N")]
    version: Option<u32>,

    /// Only runs in one of these states
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,

    /// Only runs with this label
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = crate::commands::label::label)]
    labels: Vec<(String, String)>,

    /// Only runs that ended with this error code
    #[arg(long)]
    error_code: Option<String>,

    /// Only runs that a step of this run started
    #[arg(long, value_name = "ID")]
    parent: Option<String>,

    /// Only runs created after this time, like 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,

    /// Only runs created before this time
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,

    /// Only runs that ended after this time
    #[arg(long, value_name = "TIME")]
    finished_after: Option<String>,

    /// Only runs that ended before this time
    #[arg(long, value_name = "TIME")]
    finished_before: Option<String>,

    /// Maximum number of runs
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl List {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let (mut runs, mut unreadable): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut cursor: Option<String> = None;
        while runs.len() < self.limit {
            let call = self.call().query("limit", (self.limit - runs.len()).min(PAGE).to_string());
            let call = cursor.iter().fold(call, |call, cursor| call.query("cursor", cursor));
            let mut page = ask(caller, &call).await?.value;
            for (name, all) in [("items", &mut runs), ("unreadable", &mut unreadable)] {
                if let Some(items) = page[name].as_array_mut() {
                    all.append(items);
                }
            }
            // A short page is not the last one; only a missing cursor marks the last.
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        match caller.format {
            Format::Json => {
                let mut shown = json!({"items": runs, "next_cursor": cursor});
                if !unreadable.is_empty() {
                    shown["unreadable"] = unreadable.into();
                }
                output::json(&shown);
            }
            Format::Table => {
                show::runs(&runs);
                for id in &unreadable {
                    output::line(format_args!("run {} cannot be read; the gateway's log has the reason", cell(id)));
                }
            }
        }
        Ok(())
    }

    fn call(&self) -> Call {
        let mut call = Call::get("/runs");
        if !self.state.is_empty() {
            call = call.query("state", self.state.join(","));
        }
        for (name, value) in &self.labels {
            call = call.query(format!("label.{name}"), value);
        }
        let version = self.version.map(|version| version.to_string());
        let filters = [
            ("workflow", &self.workflow),
            ("version", &version),
            ("error_code", &self.error_code),
            ("parent_run_id", &self.parent),
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
            ("finished_after", &self.finished_after),
            ("finished_before", &self.finished_before),
        ];
        let given = filters.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        given.fold(call, |call, (name, value)| call.query(name, value))
    }
}
