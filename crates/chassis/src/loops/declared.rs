//! The loops of a service as it declares them, for the docs: what `/loops` shows of a running
//! one, from the same constants.

use std::{fmt::Write, time::Duration};

use super::{Loop, Safety};
use crate::settings::{Setting, duration_text, usual};

/// A loop that a service has.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    name: &'static str,
    safe: Safety,
    budget: Duration,
    interval: &'static str,
}

impl Declared {
    /// This loop; `interval` is the key of the setting that says how often it looks.
    pub const fn of<L: Loop>(interval: &'static str) -> Declared {
        Declared { name: L::NAME, safe: L::SAFE, budget: L::BUDGET, interval }
    }
}

/// A service's loops as a table for the docs. Panics when an interval is no setting of the service.
pub fn reference(service: &str, loops: &[Declared], own: &[Setting]) -> String {
    let mut text = format!(
        "## {service}\n\n| loop | class | lock | safe with any number of replicas, because | a duplicate costs | interval | budget |\n|---|---|---|---|---|---|---|\n"
    );
    for it in loops {
        let setting = own.iter().find(|setting| setting.key == it.interval);
        let setting = setting.unwrap_or_else(|| panic!("{}: no setting {}", it.name, it.interval));
        let lock = it.safe.lock().map_or("none".to_owned(), |lock| format!("`{lock}`"));
        let (class, why, costs) = (it.safe.class(), it.safe.why(), it.safe.duplicate_costs());
        let (every, budget) = (format!("{} (`{}`)", usual(setting), setting.env), duration_text(it.budget));
        let _ = writeln!(text, "| {} | {class} | {lock} | {why} | {costs} | {every} | `{budget}` |", it.name);
    }
    text
}
