//! `muster replicas`, `muster loops`, `muster locks`: who runs, who does what, who leads.

use clap::Args;
use serde_json::Value;

use super::Caller;
use crate::{
    api::Call,
    outcome::{Code, Failure},
    output::{self, Format, cell},
};

/// Every replica that lives, and what it leads
#[derive(Args, Debug)]
pub(crate) struct Replicas {}

/// Every loop of every replica: who leads it, what it last did, why it is safe
#[derive(Args, Debug)]
pub(crate) struct Loops {
    /// This loop only, with why it is safe
    name: Option<String>,
}

/// The leaders' locks, as they stand in Redis
#[derive(Args, Debug)]
pub(crate) struct Locks {}

impl Replicas {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let Some(items) = ask(caller, "/replicas").await? else { return Ok(()) };
        let row = |it: &Value| {
            vec![
                cell(&it["service"]),
                cell(&it["instance"]),
                cell(&it["version"]),
                cell(&it["admin"]),
                cell(&it["started_at"]),
                words(&it["leads"]),
            ]
        };
        output::rows(&["SERVICE", "INSTANCE", "VERSION", "ADMIN", "STARTED", "LEADS"], items.iter().map(row));
        Ok(())
    }
}

impl Loops {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let Some(items) = ask(caller, "/loops").await? else { return Ok(()) };
        let row = |it: &Value| {
            vec![
                cell(&it["loop"]),
                cell(&it["instance"]),
                cell(&it["class"]),
                cell(&it["state"]),
                cell(&it["fence"]),
                cell(&it["since"]),
                cell(&it["last_tick_at"]),
                [cell(&it["outcome"]), cell(&it["error"])].join(" ").trim().to_owned(),
                counts(&it["counts"]),
                cell(&it["next_tick_at"]),
            ]
        };
        let asked: Vec<&Value> =
            items.iter().filter(|it| self.name.as_deref().is_none_or(|name| it["loop"] == name)).collect();
        let headings =
            ["LOOP", "INSTANCE", "CLASS", "STATE", "FENCE", "SINCE", "LAST TICK", "OUTCOME", "COUNTS", "NEXT TICK"];
        output::rows(&headings, asked.iter().map(|it| row(it)));
        match (self.name, asked.first()) {
            (Some(name), None) => {
                Err(Failure::new(format!("no replica has a loop {name:?}")).with_code(Code::NotFound).into())
            }
            (Some(_), Some(it)) => {
                output::line("");
                output::facts(&[
                    ("lock", cell(&it["lock"])),
                    ("safe, because", cell(&it["why_safe"])),
                    ("a duplicate would cost", cell(&it["duplicate_costs"])),
                ]);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }
}

impl Locks {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let Some(items) = ask(caller, "/locks").await? else { return Ok(()) };
        let row = |it: &Value| {
            let holder = if it["held"] == true { cell(&it["owner"]) } else { "nobody".to_owned() };
            vec![cell(&it["key"]), holder, cell(&it["fence"]), cell(&it["ttl_ms"])]
        };
        output::rows(&["KEY", "HOLDER", "FENCE", "TTL MS"], items.iter().map(row));
        Ok(())
    }
}

/// The items of a list; none if they were printed as JSON already.
async fn ask(caller: &Caller, path: &str) -> anyhow::Result<Option<Vec<Value>>> {
    let answer = caller.api.call(&Call::get(path)).await.map_err(Failure::from)?;
    if caller.format == Format::Json {
        output::line(answer.text);
        return Ok(None);
    }
    Ok(Some(answer.value["items"].as_array().cloned().unwrap_or_default()))
}

fn words(list: &Value) -> String {
    let words = list.as_array().map(|all| all.iter().map(cell).collect::<Vec<_>>());
    words.unwrap_or_default().join(",")
}

fn counts(counts: &Value) -> String {
    let each = counts.as_object().into_iter().flatten();
    each.map(|(what, n)| format!("{what}={n}")).collect::<Vec<_>>().join(" ")
}
