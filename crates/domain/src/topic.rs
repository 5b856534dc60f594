//! Names that people choose: topics, tenants, labels. They are validated once, where requests come in; a value of one
//! of these types is valid everywhere else, and safe inside a key or a subject. Copies share their text, because many
//! stages handle a job and each one names its tenant and topic.

mod settings;

use std::{collections::BTreeMap, fmt, sync::Arc};

use thiserror::Error;

pub use settings::{Concurrency, Paused, TopicRate, TopicRetention, TopicRetry, TopicSettings};

/// Why a name was refused, in a message for the person who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NameFault(String);

impl NameFault {
    pub(crate) fn new(text: impl Into<String>) -> NameFault {
        NameFault(text.into())
    }
}

fn part_is_fine(part: &str) -> bool {
    let mut bytes = part.bytes();
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.next().is_some_and(first) && bytes.all(|b| first(b) || b == b'_' || b == b'-')
}

/// The kind of work of a job: parts of `[a-z0-9][a-z0-9_-]*` joined by single dots, 128 characters at most.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Reads a topic, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Topic, NameFault> {
        if text.len() > 128 {
            return Err(NameFault::new("a topic has at most 128 characters"));
        }
        if !text.split('.').all(part_is_fine) {
            return Err(NameFault::new("a topic is parts of [a-z0-9][a-z0-9_-]* joined by single dots"));
        }
        Ok(Topic(text.into()))
    }

    /// A shared copy of the text.
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The owner of a job: `[a-z0-9][a-z0-9_-]{0,63}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Reads a tenant, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Tenant, NameFault> {
        if text.len() > 64 || !part_is_fine(text) {
            return Err(NameFault::new("a tenant is [a-z0-9][a-z0-9_-]* of at most 64 characters"));
        }
        Ok(Tenant(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a workflow, by the same rules as a topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkflowName(Arc<str>);

impl WorkflowName {
    /// Reads a workflow's name, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<WorkflowName, NameFault> {
        if text.len() > 128 {
            return Err(NameFault::new("a workflow's name has at most 128 characters"));
        }
        if !text.split('.').all(part_is_fine) {
            return Err(NameFault::new("a workflow's name is parts of [a-z0-9][a-z0-9_-]* joined by single dots"));
        }
        Ok(WorkflowName(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Tenant {
    /// The tenant of requests and keys that name no tenant.
    pub const DEFAULT: &str = "default";
}

impl Default for Tenant {
    fn default() -> Tenant {
        Tenant(Tenant::DEFAULT.into())
    }
}

macro_rules! show_as_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
    )*};
}
show_as_text!(Topic, Tenant, WorkflowName);

/// The labels that a submitter attaches to a job, for finding it again.
pub type Labels = BTreeMap<String, String>;

/// The most labels that a job may have.
pub const MAX_LABELS: usize = 32;

/// Validates one label. Keys are `[A-Za-z0-9][A-Za-z0-9._/-]{0,62}`, values at most 256 bytes without control
/// characters.
pub fn check_label(key: &str, value: &str) -> Result<(), NameFault> {
    let mut bytes = key.bytes();
    let head = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
    let tail = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'/' | b'-'));
    if !head || !tail || key.len() > 63 {
        return Err(NameFault::new("a label's key is [A-Za-z0-9][A-Za-z0-9._/-]* of at most 63 characters"));
    }
    if value.len() > 256 || value.chars().any(char::is_control) {
        return Err(NameFault::new("a label's value has at most 256 bytes and no control characters"));
    }
    Ok(())
}

/// Whether a name matches a pattern, in which `*` matches any characters.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((head, rest)) => {
            let Some(tail) = text.strip_prefix(head) else { return false };
            // Shorter matches of this star come first; they leave more text for the stars behind it.
            (0..=tail.len()).filter(|i| tail.is_char_boundary(*i)).any(|i| glob_matches(rest, &tail[i..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workflows_are_like_topics() {
        for (text, fine) in [("ship", true), ("order.to-parcel_2", true), ("", false), ("A", false), ("a:b", false)] {
            assert_eq!(WorkflowName::parse(text).is_ok(), fine, "{text}");
        }
        assert!(WorkflowName::parse(&"x".repeat(129)).is_err());
    }

    #[test]
    fn topics_are_dotted_lowercase_parts() {
        for good in ["a", "email.send", "0", "a-b_c.d9", &"x".repeat(128)] {
            assert!(Topic::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "A", "a b", "a*", "a.>", "-a", "_a", "ä", "a\0", &"x".repeat(129)] {
            assert!(Topic::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tenants_have_one_part() {
        assert!(Tenant::parse("default").is_ok());
        for bad in ["", "a.b", "A", &"x".repeat(65), "a:b", "a~b"] {
            assert!(Tenant::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_are_bounded_and_printable() {
        assert!(check_label("team/region", "eu-1").is_ok());
        assert!(check_label("", "x").is_err());
        assert!(check_label("a b", "x").is_err());
        assert!(check_label("a", "x\0").is_err());
        assert!(check_label("a", &"x".repeat(257)).is_err());
    }

    #[test]
    fn globs_cover_what_they_say() {
        for (glob, text, fits) in [
            ("*", "a.b", true),
            ("mail.*", "mail.send", true),
            ("mail.*", "mail", false),
            ("mail", "mail.send", false),
            ("*.send", "mail.send", true),
            ("m*.s*d", "mail.send", true),
            ("m*.s*d", "mail.sent", false),
        ] {
            assert_eq!(glob_matches(glob, text), fits, "{glob} {text}");
        }
    }
}
