//! Keeps labels bounded. A topic exists from its first use, so any client that may submit could otherwise grow every
//! replica's memory and every scrape.

use std::{
    collections::{HashMap, HashSet},
    sync::{LazyLock, RwLock},
};

/// How many distinct values a label may take before further values count as [`OTHER`].
pub const LABEL_LIMIT: usize = 1_000;
/// The label value that replaces every value past the limit.
pub const OTHER: &str = "_other";

/// The values seen so far, by label name.
type Seen = HashMap<&'static str, HashSet<Box<str>>>;

static SEEN: LazyLock<RwLock<Seen>> = LazyLock::new(Default::default);

/// The label value for a topic: the topic itself, or [`OTHER`] once a thousand topics are known.
/// [`count`](super::count), [`set`](super::set) and [`observe`](super::observe) apply the limit by themselves.
pub fn topic_label(topic: &str) -> &str {
    admit("topic", topic)
}

/// Returns `value` if it may be a value of the label `name`, otherwise [`OTHER`]; the first thousand values of each
/// label may.
pub(super) fn admit<'a>(name: &'static str, value: &'a str) -> &'a str {
    let known = |seen: &HashSet<Box<str>>| seen.contains(value);
    {
        let seen = SEEN.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        match seen.get(name) {
            Some(values) if known(values) => return value,
            Some(values) if values.len() >= LABEL_LIMIT => return OTHER,
            _ => {}
        }
    }
    let mut seen = SEEN.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let values = seen.entry(name).or_default();
    if known(values) {
        return value;
    }
    if values.len() >= LABEL_LIMIT {
        return OTHER;
    }
    values.insert(value.into());
    value
}

/// The labels of a series, each value within its label's limit.
pub(super) fn within_limits<'a>(
    names: &'static [&'static str],
    labels: &[(&'static str, &'a str)],
) -> Vec<(&'static str, &'a str)> {
    names.iter().zip(labels).map(|(name, (_, value))| (*name, admit(name, value))).collect()
}
