//! Policies outside this process that must allow a job before the scheduler decides about it.
//!
//! A counsel may take long to answer; `consult` asks it under the job's lock. Leaves to others: asking
//! again, and everything that follows from the answer (`consult`).

mod outside;

use futures_util::future::BoxFuture;
use muster_wire::v1::Submit;

pub(crate) use outside::Outside;

/// What a counsel says about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// It may go its way.
    Allow,
    /// It must not run, for this reason.
    Deny(String),
}

/// Somebody outside who has a say, and may take long to say it.
pub(crate) trait Counsel: Send + Sync {
    /// Whether it wants to be asked about the jobs of this topic.
    fn concerns(&self, tenant: &str, topic: &str) -> bool;

    /// Asks once. The error says why there is no answer; whoever asked asks again.
    fn ask<'a>(&'a self, submit: &'a Submit) -> BoxFuture<'a, Result<Advice, String>>;
}
