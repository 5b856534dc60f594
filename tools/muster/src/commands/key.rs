//! `muster key`: API keys with a tenant and scopes. A secret is shown once, by `create` and `rotate`.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::Caller;
use crate::{
    api::{Answer, Call},
    outcome::Failure,
    output::{self, Format, cell},
};

#[derive(Subcommand, Debug)]
pub(crate) enum Key {
    Create(Create),
    /// List keys, without their secrets
    List,
    /// Rotate the secret of a key; the new one is shown once, the old one stays valid for some time
    Rotate {
        /// The key's id, as `list` shows it
        id: String,

        /// How long the old secret stays valid
        #[arg(long, value_name = "MS", default_value_t = 3_600_000)]
        overlap_ms: u64,
    },
    /// Delete a key; calls with it are then refused
    Delete {
        /// The key's id, as `list` shows it
        id: String,
    },
}

/// Create a key for the tenant (--tenant); its secret is shown once
#[derive(Args, Debug)]
pub(crate) struct Create {
    /// A name for the key
    name: String,

    /// Scopes: submit, read, payloads, control, worker, approve, policy, admin
    #[arg(long = "scope", required = true, value_delimiter = ',')]
    scopes: Vec<String>,

    /// Only these topics; globs are allowed
    #[arg(long = "topic", value_name = "GLOB")]
    topics: Vec<String>,

    /// When the key expires, like 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

#[derive(Serialize)]
struct NewKey<'a> {
    name: &'a str,
    scopes: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    topics: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<&'a str>,
}

impl Key {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Key::Create(create) => create.run(caller).await,
            Key::List => list(caller).await,
            Key::Rotate { id, overlap_ms } => {
                let body = serde_json::json!({ "overlap_ms": overlap_ms }).to_string();
                let answer = caller.api.call(&Call::post(format!("/keys/{id}/rotate"), body)).await;
                shown(caller, &answer.map_err(Failure::from)?);
                Ok(())
            }
            Key::Delete { id } => {
                caller.api.call(&Call::delete(format!("/keys/{id}"))).await.map_err(Failure::from)?;
                output::line(format_args!("key {id} is gone"));
                Ok(())
            }
        }
    }
}

impl Create {
    async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let body = NewKey {
            name: &self.name,
            scopes: &self.scopes,
            topics: &self.topics,
            expires_at: self.expires_at.as_deref(),
        };
        let call = Call::post("/keys", serde_json::to_string(&body)?);
        shown(caller, &caller.api.call(&call).await.map_err(Failure::from)?);
        Ok(())
    }
}

/// Prints a key with its secret.
fn shown(caller: &Caller, answer: &Answer) {
    if caller.format == Format::Json {
        output::line(&answer.text);
        return;
    }
    let key = &answer.value;
    output::facts(&[
        ("id", cell(&key["id"])),
        ("name", cell(&key["name"])),
        ("tenant", cell(&key["tenant"])),
        ("scopes", words(&key["scopes"])),
        ("old secret until", cell(&key["previous_until"])),
        ("key", cell(&key["key"])),
    ]);
    eprintln!("store the key now: it is not shown again");
}

async fn list(caller: &Caller) -> anyhow::Result<()> {
    let answer = caller.api.call(&Call::get("/keys")).await.map_err(Failure::from)?;
    if caller.format == Format::Json {
        output::line(answer.text);
        return Ok(());
    }
    let row = |key: &Value| {
        vec![
            cell(&key["id"]),
            cell(&key["name"]),
            cell(&key["tenant"]),
            words(&key["scopes"]),
            words(&key["topics"]),
            cell(&key["expires_at"]),
        ]
    };
    let keys = answer.value["items"].as_array().cloned().unwrap_or_default();
    output::rows(&["ID", "NAME", "TENANT", "SCOPES", "TOPICS", "EXPIRES"], keys.iter().map(row));
    Ok(())
}

fn words(list: &Value) -> String {
    let words = list.as_array().map(|all| all.iter().map(cell).collect::<Vec<_>>());
    words.unwrap_or_default().join(",")
}
