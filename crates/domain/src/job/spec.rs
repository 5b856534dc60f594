//! What a submitter asked for. Immutable from the submit on; payloads travel beside it as bytes
//! that nobody in between reads.

use std::time::Duration;

use super::retry::RetryPolicy;
use crate::{Labels, Line, Tenant, Time, Topic, TraceParent};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The word that people write.
            pub fn as_str(self) -> &'static str { match self { $($name::$variant => $text,)* } }
            /// Reads the word.
            pub fn parse(text: &str) -> Option<$name> { match text { $($text => Some($name::$variant),)* _ => None } }
            /// The number on the wire; the default is 0.
            pub fn code(self) -> u32 { match self { $($name::$variant => $code,)* } }
            /// Reads the number; unknown ones are the default.
            pub fn from_code(code: u32) -> $name { match code { $($code => $name::$variant,)* _ => $name::default() } }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}

words! {
    /// Who goes first when a topic has a backlog. Declared from first to last.
    Priority {
        /// Before everything else.
        Critical = 3 "critical",
        /// Before most.
        High = 2 "high",
        /// As most are.
        #[default]
        Normal = 0 "normal",
        /// When nothing else waits.
        Low = 1 "low",
    }
}

words! {
    /// What becomes of an attempt whose worker fell silent.
    OnLostLease {
        /// Another attempt, if one is left.
        #[default]
        Retry = 0 "retry",
        /// The job fails.
        Fail = 1 "fail",
    }
}

words! {
    /// How well a submit must be kept before it is answered.
    Durability {
        /// In Redis's memory and its append-only file.
        #[default]
        Memory = 0 "memory",
        /// On a replica too.
        Replicated = 1 "replicated",
        /// On disk (Redis 7.2 and later).
        Fsynced = 2 "fsynced",
    }
}

/// A moment as a client gives it: on the clock, or from now on. The script that stores the job
/// turns the second into the first by its own node's TIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Time),
    /// So long after the submit.
    In(Duration),
}

impl When {
    /// As scripts take it: positive is absolute, negative relative, zero none.
    pub fn signed(when: Option<When>) -> i64 {
        match when {
            None => 0,
            Some(When::At(t)) => i64::try_from(t.0).unwrap_or(i64::MAX),
            Some(When::In(span)) => -i64::try_from(span.as_micros()).unwrap_or(i64::MAX).max(1),
        }
    }

    /// Reads what [`When::signed`] wrote.
    pub fn from_signed(n: i64) -> Option<When> {
        match n {
            0 => None,
            n if n > 0 => Some(When::At(Time(n.unsigned_abs()))),
            n => Some(When::In(Duration::from_micros(n.unsigned_abs()))),
        }
    }

    /// The moment, for a job created at `created`.
    pub fn resolve(self, created: Time) -> Time {
        match self {
            When::At(t) => t,
            When::In(span) => created + span,
        }
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Whose job it is.
    pub tenant: Tenant,
    /// What kind of work it is.
    pub topic: Topic,
    /// Who submitted it: a key's id.
    pub principal: String,
    /// Who goes first.
    pub priority: Priority,
    /// For finding it again.
    pub labels: Labels,
    /// What its worker must provide.
    pub requires: Labels,
    /// Jobs with the same key do not run at once, or only so many of them; empty = none.
    pub concurrency_key: String,
    /// Not before.
    pub run_at: Option<When>,
    /// Not started after.
    pub start_by: Option<When>,
    /// Over by.
    pub deadline: Option<When>,
    /// Longest one attempt may take. Milliseconds; 0 = no limit.
    pub timeout_ms: u32,
    /// How failures are retried.
    pub retry: RetryPolicy,
    /// What a silent worker means.
    pub on_lost_lease: OnLostLease,
    /// How well the submit was to be kept.
    pub durability: Durability,
    /// The trace it belongs to.
    pub trace: Option<TraceParent>,
    /// The job that this one is a retry of.
    pub retry_of: Option<crate::JobId>,
}

impl JobSpec {
    /// A job of this topic with every default.
    pub fn new(tenant: Tenant, topic: Topic) -> JobSpec {
        JobSpec {
            tenant,
            topic,
            principal: String::new(),
            priority: Priority::Normal,
            labels: Labels::new(),
            requires: Labels::new(),
            concurrency_key: String::new(),
            run_at: None,
            start_by: None,
            deadline: None,
            timeout_ms: 0,
            retry: RetryPolicy::default(),
            on_lost_lease: OnLostLease::Retry,
            durability: Durability::Memory,
            trace: None,
            retry_of: None,
        }
    }

    /// The line of offers it stands in.
    pub fn line(&self) -> Line {
        Line::of(&self.topic, &self.requires)
    }
}

/// Most bytes of an error's message.
pub const MAX_ERROR_MESSAGE: usize = 4000;

/// Why an attempt failed, as its worker or muster says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// What to match on; `handler_error` if nobody said.
    pub code: String,
    /// For people; at most 4,000 bytes, cut on a character boundary.
    pub message: String,
    /// Any JSON, verbatim.
    pub details: Option<String>,
    /// Whether another attempt makes sense.
    pub retryable: bool,
}

impl JobError {
    /// An error with its message cut to what records hold.
    pub fn new(code: impl Into<String>, message: &str, retryable: bool) -> JobError {
        let message = cut(message, MAX_ERROR_MESSAGE).to_owned();
        JobError { code: code.into(), message, details: None, retryable }
    }
}

/// The longest prefix of at most `limit` bytes that ends on a character boundary.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// How far a running job is.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Progress {
    /// 0 to 100.
    pub percent: Option<f64>,
    /// For people.
    pub message: Option<String>,
    /// Any JSON, verbatim.
    pub data: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_cut_on_a_character_boundary() {
        let long = "ü€😀".repeat(1200);
        let error = JobError::new("handler_error", &long, true);
        assert!(error.message.len() <= MAX_ERROR_MESSAGE && error.message.len() > MAX_ERROR_MESSAGE - 4);
        assert!(long.starts_with(&error.message));
    }

    #[test]
    fn moments_survive_the_way_into_a_script() {
        for when in [None, Some(When::At(Time(7))), Some(When::In(Duration::from_millis(3)))] {
            assert_eq!(When::from_signed(When::signed(when)), when);
        }
    }
}
