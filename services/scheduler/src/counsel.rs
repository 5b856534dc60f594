//! Policies outside this process that must allow a job before the scheduler decides about it.
//!
//! A counsel may take long to answer; `consult` asks it under the job's lock. Leaves to others: repeating the question,
//! and everything that follows from the answer (`consult`).

mod outside;

use futures_util::future::BoxFuture;
use muster_wire::v1::Submit;

pub(crate) use outside::Outside;

/// The answer of a counsel about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// The job may proceed.
    Allow,
    /// The job must not run, for this reason.
    Deny(String),
}

/// A decider outside this process, which may take long to answer.
pub(crate) trait Counsel: Send + Sync {
    /// Whether this counsel wants to be asked about the job.
    fn concerns(&self, tenant: &str, topic: &str) -> bool;

    /// Asks once. The error says why there is no answer; the caller asks again.
    fn ask<'a>(&'a self, submit: &'a Submit) -> BoxFuture<'a, Result<Advice, String>>;
}
