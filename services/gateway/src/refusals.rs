//! Maps the refusals of admission to problems: the only place that knows both.

use muster_domain::ProblemCode;
use muster_flow::admission::{Refusal, SchemaFault, bounds::OutOfBounds};

use crate::problem::{Fault, Problem};

impl From<Refusal> for Problem {
    /// The problem of a job that is the whole request.
    fn from(refusal: Refusal) -> Problem {
        refused_at(refusal, "")
    }
}

/// The problem of a job that is at `at` in the request, such as `/items/3`.
pub(crate) fn refused_at(refusal: Refusal, at: &str) -> Problem {
    let (detail, retry_after) = (refusal.to_string(), refusal.retry_after());
    let code = match refusal {
        Refusal::Undeclared => return Problem::field(ProblemCode::InvalidRequest, format!("{at}/topic"), detail),
        Refusal::Payload { topic, faults } => {
            let fault = |SchemaFault { pointer, detail }: SchemaFault| Fault {
                code: ProblemCode::InvalidRequest,
                pointer: format!("{at}/payload{pointer}"),
                detail: format!("{detail} (the schema of topic {topic})"),
            };
            return Problem::fields(faults.into_iter().map(fault).collect());
        }
        Refusal::Store(error) => return error.into(),
        Refusal::Unanswered => return Problem::store_away(),
        Refusal::Mismatch => {
            let detail = "this idempotency key was used with another body";
            return Problem::new(ProblemCode::IdempotencyMismatch, detail);
        }
        Refusal::BacklogFull { .. } => ProblemCode::BacklogFull,
        Refusal::RateLimited { .. } | Refusal::NeverFits { .. } => ProblemCode::RateLimited,
        Refusal::CheckLate | Refusal::Behind { .. } | Refusal::QueueFull => ProblemCode::Overloaded,
        Refusal::SchemaUnusable { .. } | Refusal::Lost => ProblemCode::Internal,
    };
    let problem = Problem::new(code, detail);
    // Only some codes carry a time to retry.
    Problem { retry_after: problem.retry_after.map(|usual| retry_after.unwrap_or(usual)), ..problem }
}

/// The problem of a job at `at` in the request whose field is beyond its bounds.
pub(crate) fn out_of_bounds(fault: &OutOfBounds, at: &str) -> Problem {
    Problem::field(ProblemCode::InvalidRequest, format!("{at}{}", fault.field), fault.why.to_string())
}

/// The problem of a retry by hand, whose id derives from the job that it retries.
pub(crate) fn retry_refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Mismatch => {
            Problem::new(ProblemCode::AlreadyRetried, "this job was retried before, with other overrides")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_domain::Topic;

    use super::*;

    #[test]
    fn a_refusal_names_its_place_in_the_request() {
        let topic = Topic::parse("t").unwrap();
        let fault = SchemaFault { pointer: "/a".into(), detail: "is wrong".into() };
        let problem = refused_at(Refusal::Payload { topic, faults: vec![fault] }, "/items/3");
        assert_eq!(problem.errors[0].pointer, "/items/3/payload/a");
        assert_eq!(problem.errors[0].detail, "is wrong (the schema of topic t)");
        assert_eq!(Problem::from(Refusal::Undeclared).errors[0].pointer, "/topic");
    }

    #[test]
    fn a_refusal_for_now_says_when_to_come_back() {
        let seconds = |refusal: Refusal| Problem::from(refusal).retry_after.map(|wait| wait.as_secs());
        let topic = Topic::parse("t").unwrap();
        assert_eq!(seconds(Refusal::BacklogFull { topic: topic.clone(), most: 1 }), Some(2));
        assert_eq!(seconds(Refusal::Behind { by: Duration::from_secs(61) }), Some(5));
        assert_eq!(seconds(Refusal::RateLimited { retry_after: Duration::from_secs(9) }), Some(9));
        assert_eq!(seconds(Refusal::NeverFits { n: 3, most: 2 }), Some(1));
        assert_eq!(seconds(Refusal::QueueFull), Some(1));
        assert_eq!(seconds(Refusal::SchemaUnusable { topic }), None);
    }

    #[test]
    fn a_used_id_is_told_by_the_key_or_by_the_retry() {
        assert_eq!(Problem::from(Refusal::Mismatch).code, ProblemCode::IdempotencyMismatch);
        assert_eq!(retry_refused(Refusal::Mismatch).code, ProblemCode::AlreadyRetried);
    }
}
