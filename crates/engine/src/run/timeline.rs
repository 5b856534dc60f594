//! The timeline: what happened in a run, when, and why. The items of a for-each are left out unless they fail.

use muster_domain::Time;

/// One entry of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Time,
    /// What: a state of the run or of the step, or the name of what happened.
    pub what: &'static str,
    /// The step, with the numbers of its item and iteration; empty for the run.
    pub step: String,
    /// Why; empty if there is nothing to say.
    pub why: String,
}
