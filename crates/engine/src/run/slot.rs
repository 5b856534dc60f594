//! The slot of a run: which runs of its workflow it counts with, and what it does if there is no room.

use muster_expr::Expr;
use serde_json::Value;

use super::{document::Run, records::RunError, sight::Sight, work::Work};
use crate::definition::WhenFull;

/// The most bytes of the value of a concurrency key.
const MOST_BYTES: usize = 256;

/// What a workflow's concurrency asks for, of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotWish {
    /// The value of the key; empty without one.
    pub key: String,
    /// How many runs may hold it.
    pub max: u32,
    /// What to do if no place is free.
    pub when_full: WhenFull,
}

fn wrong(what: &str) -> RunError {
    RunError::new("expression_error", format!("`concurrency.key` {what}"))
}

impl Run {
    /// The slot that the workflow's `concurrency` asks for this run; `None` without one. For a new run: the key reads
    /// its input. A run that gets a slot is told with [`Run::hold_slot`] before it is stored.
    pub fn slot_wish(&self) -> Result<Option<SlotWish>, RunError> {
        let Some(given) = &self.plan.definition().concurrency else { return Ok(None) };
        let key = given.key.as_ref().map(|key| self.slot_key(key)).transpose()?.unwrap_or_default();
        Ok(Some(SlotWish { key, max: given.max, when_full: given.when_full }))
    }

    /// The value of a key as text: numbers and booleans as JSON writes them.
    fn slot_key(&self, key: &Expr) -> Result<String, RunError> {
        let work = Work::new(self, self.head.now);
        let value = work.expr(key, &Sight::outside()).map_err(|_| wrong("reads an input that was not loaded"))??;
        let text = match value {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return Err(wrong("is neither a string nor a number nor a boolean")),
        };
        if text.len() > MOST_BYTES {
            return Err(wrong(&format!("has {} bytes; at most {MOST_BYTES} are taken", text.len())));
        }
        Ok(text)
    }
}
