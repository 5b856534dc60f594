//! Why a job is refused, without the words of any transport.

use std::time::Duration;

use muster_domain::Topic;
use muster_store::StoreError;

use crate::SubmitRefused;

/// How long to wait after a refusal for a full queue or a late check.
const SOON: Duration = Duration::from_secs(1);
/// How long to wait after a full backlog.
const BACKLOG: Duration = Duration::from_secs(2);
/// How long to wait for schedulers that are too far behind.
const LAG: Duration = Duration::from_secs(5);

/// Why a job was not accepted. The texts continue "the job was refused: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The topic has no stored settings, and only declared topics are used.
    #[error("is not declared, and MUSTER_TOPICS=declared refuses topics that are not")]
    Undeclared,
    /// The payload does not fit the schema of its topic.
    #[error("the payload does not fit the schema of topic {topic}")]
    Payload {
        /// The topic with the schema.
        topic: Topic,
        /// Every fault that was found.
        faults: Vec<SchemaFault>,
    },
    /// Another version of this program accepted the schema of the topic; this one cannot use it.
    #[error("the schema of topic {topic} cannot be used by this version")]
    SchemaUnusable {
        /// The topic with the schema.
        topic: Topic,
    },
    /// The payload was not checked in time.
    #[error("the payload was not judged in time; nothing was stored")]
    CheckLate,
    /// Too many jobs of the topic wait.
    #[error("{most} jobs of topic {topic} wait already; nothing was stored")]
    BacklogFull {
        /// The topic.
        topic: Topic,
        /// How many jobs may wait.
        most: u64,
    },
    /// The schedulers are too far behind with earlier submits.
    #[error("the schedulers are {} s behind with what was submitted; nothing was stored", .by.as_secs())]
    Behind {
        /// How far behind they are.
        by: Duration,
    },
    /// The tenant is over its rate.
    #[error("over the tenant's rate")]
    RateLimited {
        /// When there will be a token again.
        retry_after: Duration,
    },
    /// More jobs at once than the tenant's rate ever admits.
    #[error("{n} jobs never fit: the tenant's rate lets {most} in at once, so send fewer")]
    NeverFits {
        /// The number of jobs.
        n: u32,
        /// The most jobs at once.
        most: u32,
    },
    /// Too many submits wait for a commit.
    #[error("too many submits wait already; nothing was stored")]
    QueueFull,
    /// The id belongs to a different request.
    #[error("the id belongs to another request")]
    Mismatch,
    /// The commit was not answered in time. The job may be stored.
    #[error("the store does not answer; nothing is known to have been done")]
    Unanswered,
    /// The commit ended without an answer. The job may be stored.
    #[error("the commit broke off; the log has the reason")]
    Lost,
    /// Redis did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A fault of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    /// The JSON pointer to the fault within the payload or the schema.
    pub pointer: String,
    /// What is wrong. It does not repeat the payload.
    pub detail: String,
}

impl Refusal {
    /// When the same job may be accepted; `None` if it is refused for good.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refusal::Undeclared
            | Refusal::Payload { .. }
            | Refusal::SchemaUnusable { .. }
            | Refusal::Mismatch
            | Refusal::NeverFits { .. } => None,
            Refusal::CheckLate | Refusal::QueueFull | Refusal::Unanswered | Refusal::Lost => Some(SOON),
            Refusal::BacklogFull { .. } => Some(BACKLOG),
            Refusal::Behind { .. } => Some(LAG),
            Refusal::RateLimited { retry_after } => Some((*retry_after).max(SOON)),
            Refusal::Store(fault) => fault.is_retryable().then_some(SOON),
        }
    }
}

impl From<SubmitRefused> for Refusal {
    fn from(refused: SubmitRefused) -> Refusal {
        match refused {
            SubmitRefused::Mismatch => Refusal::Mismatch,
            SubmitRefused::Store(fault) => Refusal::Store(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_now_says_when_to_try_again_and_one_for_good_does_not() {
        let topic = Topic::parse("t").unwrap();
        let away = Refusal::Store(StoreError::Unavailable { detail: String::new() });
        for refusal in [Refusal::QueueFull, Refusal::Behind { by: LAG }, Refusal::CheckLate, away] {
            assert!(refusal.retry_after().is_some(), "{refusal}");
        }
        let soon = Refusal::RateLimited { retry_after: Duration::from_millis(3) };
        assert_eq!(soon.retry_after(), Some(SOON), "never at once");
        let payload = Refusal::Payload { topic: topic.clone(), faults: Vec::new() };
        for refusal in [Refusal::Undeclared, Refusal::Mismatch, Refusal::SchemaUnusable { topic }, payload] {
            assert_eq!(refusal.retry_after(), None, "{refusal}");
        }
    }
}
