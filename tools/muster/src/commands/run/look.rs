//! Looks into a run: its explanation, its timeline, its drawing, the items of a for-each.

use clap::Args;
use serde_json::{Value, json};

use super::{Caller, ask, path, show};
use crate::{
    api::{Call, part},
    commands::workflow::Drawing,
    output::{self, Format},
};

/// The most items on one page.
const PAGE: usize = 500;

/// Reads something about a run and shows it.
pub(super) async fn at(caller: &Caller, path: &str, show: fn(&Value)) -> anyhow::Result<()> {
    let answer = ask(caller, &Call::get(path)).await?;
    match caller.format {
        Format::Json => output::line(answer.text),
        Format::Table => show(&answer.value),
    }
    Ok(())
}

/// Draw a run; its steps have the colours of their states
#[derive(Args, Debug)]
pub(crate) struct Graph {
    /// The run's id
    id: String,

    /// What to draw it as
    #[arg(long, value_enum, default_value_t)]
    format: Drawing,
}

impl Graph {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let call = Call::get(path(&self.id, "/graph")?).query("format", self.format.word());
        output::line(ask(caller, &call).await?.text.trim_end());
        Ok(())
    }
}

/// Show the items of a for-each
#[derive(Args, Debug)]
pub(crate) struct Items {
    /// The run's id
    id: String,

    /// The step with the for-each
    step: String,

    /// The first item
    #[arg(long, default_value_t = 0, value_name = "INDEX")]
    from: u64,

    /// Only items in one of these states
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,

    /// Maximum number of items
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl Items {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let path = path(&self.id, &format!("/steps/{}/items", part(&self.step)))?;
        let (mut items, mut total, mut next) = (Vec::new(), Value::Null, Some(self.from));
        while let Some(from) = next.filter(|_| items.len() < self.limit) {
            // With a filter by state, the number of matching items in a page is unknown before the page is read.
            let most = if self.state.is_empty() { self.limit - items.len() } else { PAGE };
            let call = Call::get(&path).query("from", from.to_string()).query("limit", most.min(PAGE).to_string());
            let mut page = ask(caller, &call).await?.value;
            total = page["total"].take();
            next = page["next_from"].as_u64().filter(|next| *next > from);
            let found = page["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            items.extend(found.into_iter().filter(|item| self.takes(item)));
            if items.len() > self.limit {
                next = items[self.limit]["index"].as_u64();
                items.truncate(self.limit);
            }
        }
        match caller.format {
            Format::Json => output::json(&json!({"total": total, "items": items, "next_from": next})),
            Format::Table => show::items(&self.step, &total, &items, next),
        }
        Ok(())
    }

    fn takes(&self, item: &Value) -> bool {
        self.state.is_empty() || self.state.iter().any(|state| item["state"] == state.as_str())
    }
}
