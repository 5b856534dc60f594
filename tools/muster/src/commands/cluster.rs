//! `muster replicas`, `muster loops`, `muster locks`: the running replicas, their loops, and the leaders.

use clap::Args;
use serde_json::Value;

use super::Caller;
use crate::{
    api::Call,
    outcome::{Code, Failure},
    output::{self, Format, cell},
};

/// List the live replicas and the loops that they lead
#[derive(Args, Debug)]
pub(crate) struct Replicas {}

/// List the loops of every replica: leader, last result, why duplicates are safe
#[derive(Args, Debug)]
pub(crate) struct Loops {
    /// Only this loop
    name: Option<String>,
}

/// List the locks in Redis, of leaders and on jobs: holder and time
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
                cell(&it["seen_at"]),
                words(&it["leads"]),
            ]
        };
        let headings = ["SERVICE", "INSTANCE", "VERSION", "ADMIN", "STARTED", "SEEN", "LEADS"];
        output::rows(&headings, items.iter().map(row));
        let held = items.iter().flat_map(|it| it["holds"].as_array().into_iter().flatten().map(move |lock| (it, lock)));
        output::line("");
        output::rows(
            &["LEADS", "INSTANCE", "SINCE", "FENCE", "LOCK"],
            held.map(|(it, lock)| {
                vec![
                    cell(&lock["loop"]),
                    cell(&it["instance"]),
                    cell(&lock["since"]),
                    cell(&lock["fence"]),
                    cell(&lock["lock"]),
                ]
            }),
        );
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
                cell(&it["state"]),
                [cell(&it["outcome"]), cell(&it["error"])].join(" ").trim().to_owned(),
                cell(&it["last_tick_at"]),
                counts(&it["counts"]),
                cell(&it["holder"]),
                cell(&it["next_tick_at"]),
                cell(&it["interval_ms"]),
                cell(&it["class"]),
                cell(&it["since"]),
                cell(&it["fence"]),
                shards(&it["shards"]),
            ]
        };
        let mut asked: Vec<&Value> =
            items.iter().filter(|it| self.name.as_deref().is_none_or(|name| it["loop"] == name)).collect();
        let headings = [
            "LOOP",
            "INSTANCE",
            "STATE",
            "OUTCOME",
            "LAST TICK",
            "COUNTS",
            "HOLDER",
            "NEXT TICK",
            "INTERVAL MS",
            "CLASS",
            "SINCE",
            "FENCE",
            "SHARDS",
        ];
        output::rows(&headings, asked.iter().map(|it| row(it)));
        if let (Some(name), true) = (&self.name, asked.is_empty()) {
            return Err(Failure::new(format!("no replica has a loop {name:?}")).with_code(Code::NotFound).into());
        }
        output::line("");
        // The description of a loop is the same on all replicas, and the rows come in the order of the loops.
        asked.dedup_by_key(|it| cell(&it["loop"]));
        let safety = |it: &&Value| ["loop", "lock", "why_safe", "duplicate_costs"].map(|name| cell(&it[name])).to_vec();
        output::rows(&["LOOP", "LOCK", "SAFE, BECAUSE", "A DUPLICATE WOULD COST"], asked.iter().map(safety));
        Ok(())
    }
}

impl Locks {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let Some(items) = ask(caller, "/locks").await? else { return Ok(()) };
        let row = |it: &Value| {
            let holder = if it["held"] == true { cell(&it["owner"]) } else { "none".to_owned() };
            vec![cell(&it["key"]), holder, cell(&it["since"]), cell(&it["fence"]), cell(&it["ttl_ms"])]
        };
        output::rows(&["KEY", "HOLDER", "SINCE", "FENCE", "TTL MS"], items.iter().map(row));
        Ok(())
    }
}

/// The items of a list; `None` if they were already printed as JSON.
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

/// The shards that a replica owns, as the names of their locks end; nothing for a loop without shards.
fn shards(shards: &Value) -> String {
    let own = shards.as_array().into_iter().flatten().filter_map(Value::as_u64);
    own.map(|shard| format!("{shard:x}")).collect::<Vec<_>>().join(",")
}

fn counts(counts: &Value) -> String {
    let each = counts.as_object().into_iter().flatten();
    each.map(|(what, n)| format!("{what}={n}")).collect::<Vec<_>>().join(" ")
}
