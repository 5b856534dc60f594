//! The request of a submitter. It never changes after the submit. The payload travels beside it as
//! bytes that no component between client and worker reads.

use std::time::Duration;

use super::retry::policy::RetryPolicy;
use crate::{Labels, Line, Tenant, Time, Topic, TraceParent};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The name that people write.
            pub fn as_str(self) -> &'static str { match self { $($name::$variant => $text,)* } }
            /// Reads the name.
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
    /// The order in which jobs leave a topic's backlog. Declared from first to last.
    Priority {
        /// Before all other priorities.
        Critical = 3 "critical",
        /// Before `normal` and `low`.
        High = 2 "high",
        /// The usual priority.
        #[default]
        Normal = 0 "normal",
        /// Only when no job of a higher priority waits.
        Low = 1 "low",
    }
}

words! {
    /// What happens to a job after its worker fell silent and the lease ran out.
    OnLostLease {
        /// Another attempt starts, if one is left.
        #[default]
        Retry = 0 "retry",
        /// The job fails.
        Fail = 1 "fail",
    }
}

words! {
    /// How safely a submit must be stored before it is answered.
    Durability {
        /// In Redis's memory and its append-only file.
        #[default]
        Memory = 0 "memory",
        /// On a Redis replica too.
        Replicated = 1 "replicated",
        /// On disk (Redis 7.2 and later).
        Fsynced = 2 "fsynced",
    }
}

/// A moment as a client gives it: absolute, or relative to the submit. The script that stores the
/// job converts a relative moment with its own node's TIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Time),
    /// This long after the submit.
    In(Duration),
}

impl When {
    /// The form that scripts take: positive is absolute, negative is relative, zero is none.
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

    /// The absolute moment for a job created at `created`.
    pub fn resolve(self, created: Time) -> Time {
        match self {
            When::At(t) => t,
            When::In(span) => created + span,
        }
    }
}

/// The request that a job was submitted with.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// The tenant that owns the job.
    pub tenant: Tenant,
    /// The kind of work.
    pub topic: Topic,
    /// The id of the API key that submitted the job.
    pub principal: String,
    /// The order in which the job leaves the backlog.
    pub priority: Priority,
    /// Labels for finding the job again.
    pub labels: Labels,
    /// What a worker must provide to run the job.
    pub requires: Labels,
    /// Only a limited number of jobs with the same key run at once, one by default. Empty = no key.
    pub concurrency_key: String,
    /// When the job may run at the earliest.
    pub run_at: Option<When>,
    /// When the job must have started.
    pub start_by: Option<When>,
    /// When the job must have ended.
    pub deadline: Option<When>,
    /// The longest time one attempt may take, in milliseconds; 0 = no limit.
    pub timeout_ms: u32,
    /// How failed attempts are retried.
    pub retry: RetryPolicy,
    /// What to do when a worker falls silent.
    pub on_lost_lease: OnLostLease,
    /// How safely the submit had to be stored before it was answered.
    pub durability: Durability,
    /// The trace that the job belongs to.
    pub trace: Option<TraceParent>,
    /// The job that this one is a retry of.
    pub retry_of: Option<crate::JobId>,
    /// The run of a workflow that the job belongs to.
    pub run: Option<crate::RunId>,
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
            run: None,
        }
    }

    /// The line that the job waits in.
    pub fn line(&self) -> Line {
        Line::of(&self.topic, &self.requires)
    }
}

/// The most bytes of an error's message.
pub const MAX_ERROR_MESSAGE: usize = 4000;

/// Why an attempt failed, as reported by its worker or by Muster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// The code to match on; `handler_error` if the worker gave none.
    pub code: String,
    /// A message for people; at most 4,000 bytes, cut on a character boundary.
    pub message: String,
    /// Any JSON, verbatim.
    pub details: Option<String>,
    /// Whether another attempt makes sense.
    pub retryable: bool,
}

impl JobError {
    /// An error with its message cut to the length that records hold.
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
    /// A message for people.
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
