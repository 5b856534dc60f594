//! `muster topic`: the settings of topics, their numbers, and the switch that pauses one.
//!
//! `set` reads the settings, changes the named ones and writes under the version that it read. If another write came
//! first, it starts again. So two people who change different fields both succeed.

use clap::Subcommand;
use serde_json::{Map, Value};

use super::Caller;
use crate::{
    api::{Call, CallError},
    outcome::Failure,
    output::{self, Format, cell},
};

/// The fields of an answer that are settings; the others are numbers of the topic.
const SETTINGS: [&str; 9] =
    ["concurrency", "rate", "max_backlog", "retry", "timeout_ms", "lease_ms", "retention", "schema", "shared"];
/// How often a write is tried again after another write came first.
const TRIES: usize = 5;

#[derive(Subcommand, Debug)]
pub(crate) enum Topic {
    /// List topics that have settings or live workers
    List,
    /// Show the settings and the current figures of a topic
    Get {
        /// The topic
        topic: String,
    },
    /// Change some settings of a topic: `rate.per_s=20 max_backlog=1000 retry=`
    Set {
        /// The topic
        topic: String,
        /// Name and value; without a value, the setting is removed. Names may be paths, values may be JSON
        #[arg(required = true, value_name = "NAME=VALUE")]
        changes: Vec<String>,
    },
    /// Pause a topic: its jobs wait; running jobs continue
    Pause {
        /// The topic
        topic: String,
        /// Reason, shown with the topic
        #[arg(long)]
        reason: Option<String>,
    },
    /// Resume a topic: its waiting jobs continue in their order
    Resume {
        /// The topic
        topic: String,
    },
}

impl Topic {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let call = match self {
            Topic::List => return list(caller).await,
            Topic::Get { topic } => Call::get(format!("/topics/{topic}")),
            Topic::Set { topic, changes } => return set(caller, &topic, &changes).await,
            Topic::Pause { topic, reason } => {
                let body = serde_json::json!({ "reason": reason });
                Call::post(format!("/topics/{topic}/pause"), body.to_string()).repeatable()
            }
            Topic::Resume { topic } => Call::post(format!("/topics/{topic}/resume"), "").repeatable(),
        };
        let answer = caller.api.call(&call).await.map_err(Failure::from)?;
        show(caller, &answer.text, &answer.value);
        Ok(())
    }
}

async fn set(caller: &Caller, topic: &str, changes: &[String]) -> anyhow::Result<()> {
    let path = format!("/topics/{topic}");
    for _ in 0..TRIES {
        let mut read = caller.api.call(&Call::get(&path)).await.map_err(Failure::from)?.value;
        let version = read["version"].as_u64().unwrap_or(0);
        let mut settings = Value::Object(SETTINGS.iter().fold(Map::new(), |mut all, name| {
            if !read[*name].is_null() {
                all.insert((*name).to_owned(), read[*name].take());
            }
            all
        }));
        for change in changes {
            apply(&mut settings, change)?;
        }
        let write = Call::put(&path, settings.to_string()).if_match(version);
        match caller.api.call(&write).await {
            Ok(answer) => {
                show(caller, &answer.text, &answer.value);
                return Ok(());
            }
            Err(CallError::Refused(problem)) if problem.status == 412 => {}
            Err(error) => return Err(Failure::from(error).into()),
        }
    }
    Err(Failure::new("other writers keep changing this topic; nothing was written").hint("try again").into())
}

/// Applies one `name=value`.
pub(super) fn apply(settings: &mut Value, change: &str) -> anyhow::Result<()> {
    let Some((path, text)) = change.split_once('=').filter(|(path, _)| !path.is_empty()) else {
        return Err(Failure::usage(format!("`{change}` is not NAME=VALUE")).into());
    };
    let mut place = settings;
    let (parents, name) = path.rsplit_once('.').map_or((None, path), |(parents, name)| (Some(parents), name));
    for part in parents.into_iter().flat_map(|parents| parents.split('.')) {
        if !place[part].is_object() {
            place[part] = Value::Object(Map::new());
        }
        place = &mut place[part];
    }
    let Some(fields) = place.as_object_mut() else { return Ok(()) };
    match text {
        "" => _ = fields.remove(name),
        text => {
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
            fields.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

async fn list(caller: &Caller) -> anyhow::Result<()> {
    let answer = caller.api.call(&Call::get("/topics")).await.map_err(Failure::from)?;
    if caller.format == Format::Json {
        output::line(answer.text);
        return Ok(());
    }
    let row = |topic: &Value| {
        vec![
            cell(&topic["topic"]),
            if topic["paused"] == true { "paused".to_owned() } else { String::new() },
            cell(&topic["rate"]["per_s"]),
            cell(&topic["concurrency"]["max"]),
            cell(&topic["max_backlog"]),
            cell(&topic["workers"]),
            cell(&topic["updated_at"]),
        ]
    };
    let topics = answer.value["items"].as_array().cloned().unwrap_or_default();
    let headings = ["TOPIC", "PAUSED", "RATE/S", "CONCURRENCY", "MAX BACKLOG", "WORKERS", "CHANGED"];
    output::rows(&headings, topics.iter().map(row));
    Ok(())
}

fn show(caller: &Caller, text: &str, topic: &Value) {
    if caller.format == Format::Json {
        output::line(text);
        return;
    }
    let paused = match (topic["paused"] == true, &topic["pause"]) {
        (false, _) => "no".to_owned(),
        (true, pause) => {
            let reason = cell(&pause["reason"]);
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            format!("since {} by {}{why}", cell(&pause["since"]), cell(&pause["by"]))
        }
    };
    let mut facts = vec![
        ("topic", cell(&topic["topic"])),
        ("tenant", cell(&topic["tenant"])),
        ("paused", paused),
        ("backlog", cell(&topic["backlog"])),
        ("runnable", cell(&topic["runnable"])),
        ("oldest, ms", cell(&topic["oldest_age_ms"])),
        ("workers", cell(&topic["workers"])),
    ];
    facts.extend(SETTINGS.iter().map(|name| (*name, cell(&topic[*name]))));
    facts.push(("version", cell(&topic["version"])));
    facts.push(("changed", cell(&topic["updated_at"])));
    output::facts(&facts);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_touches_what_it_names() {
        let mut settings = json!({"rate": {"per_s": 1, "burst": 2}, "max_backlog": 5});
        for change in ["rate.per_s=20", "retry.backoff.jitter=0", "max_backlog=", "lease_ms=6000", "x=a b"] {
            apply(&mut settings, change).unwrap();
        }
        let wanted = json!({
            "rate": {"per_s": 20, "burst": 2}, "retry": {"backoff": {"jitter": 0}}, "lease_ms": 6000, "x": "a b"
        });
        assert_eq!(settings, wanted);
        assert!(apply(&mut settings, "rate").is_err() && apply(&mut settings, "=1").is_err());
    }
}
