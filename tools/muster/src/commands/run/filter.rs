//! Which runs a command is about: as parameters of a list, and as the filter of a bulk operation.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    api::Call,
    commands::{label::label, operation},
};

/// Which runs
#[derive(Args, Debug)]
pub(super) struct Filter {
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
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
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
}

impl Filter {
    fn texts(&self) -> [(&'static str, &Option<String>); 7] {
        [
            ("workflow", &self.workflow),
            ("error_code", &self.error_code),
            ("parent_run_id", &self.parent),
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
            ("finished_after", &self.finished_after),
            ("finished_before", &self.finished_before),
        ]
    }

    /// The first page of a list.
    pub(super) fn call(&self) -> Call {
        let mut call = Call::get("/runs");
        if !self.state.is_empty() {
            call = call.query("state", self.state.join(","));
        }
        for (name, value) in &self.labels {
            call = call.query(format!("label.{name}"), value);
        }
        let call = self.version.into_iter().fold(call, |call, version| call.query("version", version.to_string()));
        let given = self.texts().into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        given.fold(call, |call, (name, value)| call.query(name, value))
    }

    /// The filter of a bulk operation.
    pub(super) fn body(&self) -> Map<String, Value> {
        let mut body = operation::filter(&self.state, &self.labels, self.texts());
        body.extend(self.version.map(|version| ("version".to_owned(), json!(version))));
        body
    }
}
