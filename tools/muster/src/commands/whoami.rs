//! `muster whoami`: the key and tenant that the gateway identifies.

use clap::Args;
use serde_json::Value;

use super::Caller;
use crate::{
    api::Call,
    outcome::Failure,
    output::{self, Format, cell},
};

/// Show the current key: its tenant and its scopes
#[derive(Args, Debug)]
pub(crate) struct WhoAmI {}

impl WhoAmI {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let answer = caller.api.call(&Call::get("/whoami")).await.map_err(Failure::from)?;
        if caller.format == Format::Json {
            output::line(answer.text);
            return Ok(());
        }
        let key = &answer.value;
        let words = |list: &Value| {
            let words = list.as_array().map(|all| all.iter().map(cell).collect::<Vec<_>>());
            words.unwrap_or_default().join(",")
        };
        output::facts(&[
            ("key", cell(&key["key_id"])),
            ("name", cell(&key["name"])),
            ("tenant", cell(&key["tenant"])),
            ("all tenants", cell(&key["all_tenants"])),
            ("scopes", words(&key["scopes"])),
            ("topics", words(&key["topics"])),
            ("expires", cell(&key["expires_at"])),
        ]);
        Ok(())
    }
}
