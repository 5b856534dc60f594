//! `muster run list`: newest first, filtered by the gateway, page after page until there are enough.

use clap::Args;
use serde_json::{Value, json};

use super::{Caller, ask, filter::Filter, show};
use crate::output::{self, Format, cell};

/// The most runs on one page.
const PAGE: usize = 500;

/// List runs, newest first
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,

    /// Maximum number of runs
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl List {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let (mut runs, mut unreadable): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut cursor: Option<String> = None;
        while runs.len() < self.limit {
            let call = self.filter.call().query("limit", (self.limit - runs.len()).min(PAGE).to_string());
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
}
