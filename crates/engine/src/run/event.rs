//! What happens to a run from outside.

use muster_domain::{JobId, Labels, RunId, Time, job::Ending};
use serde_json::Value;

use super::records::{Parent, RunError};
use crate::value::ValueFault;

/// Something that happened, and when. Events of one run are applied in the order of their times, as far as they are
/// known together; the run's `now` never goes back.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The stored time of the event.
    pub at: Time,
    /// What happened.
    pub what: What,
}

/// What happened. Places are texts as a command gave them (`charge`, `reserve[12]`).
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The run has its slot, or needs none.
    Start,
    /// A start was refused for good: the run fails before its first step.
    Refuse(RunError),
    /// Time passed.
    Timer,
    /// A job of the run ended.
    JobEnded(JobEnd),
    /// A confirmed job is gone without an end.
    JobLost {
        /// The task that it was for.
        task: String,
        /// The job.
        job: JobId,
    },
    /// A sub-run ended, or its compensations did.
    SubRunEnded(SubRunEnd),
    /// A message to the run.
    Signal {
        /// Distinguishes signals: the same id twice is one signal.
        id: String,
        /// Its name.
        name: String,
        /// Its body.
        body: Value,
    },
    /// An approval has its quorum of votes, or was rejected.
    Approval {
        /// The step.
        step: String,
        /// Whether it was granted.
        granted: bool,
        /// Who decided, when, with which notes: the step's result.
        by: Value,
    },
    /// A command was carried out, or found carried out.
    Done(String),
    /// A command was refused for good.
    Refused {
        /// The command's key.
        key: String,
        /// Why.
        error: RunError,
    },
    /// Somebody asks for something.
    Op {
        /// Distinguishes requests: the same id twice is one request. At most 64 bytes.
        id: String,
        /// What is asked for.
        op: RunOp,
    },
}

/// What somebody may ask of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunOp {
    /// Stop it.
    Cancel {
        /// Whether to undo what it did.
        compensate: bool,
        /// Why.
        reason: String,
    },
    /// Start nothing for a while.
    Pause,
    /// Go on.
    Resume,
    /// End a step that is stuck, with a result.
    Complete {
        /// The step.
        step: String,
        /// Its result.
        result: Value,
        /// Why.
        reason: String,
    },
    /// Pass over a step that is stuck.
    Skip {
        /// The step.
        step: String,
        /// Why.
        reason: String,
    },
    /// Undo what is not undone, of a run that has ended.
    Compensate {
        /// The step of another run that asks for it, and is told of its end.
        tell: Option<Parent>,
    },
}

/// How a job of a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEnd {
    /// The task that it was submitted for ([`Submit::task`](super::Submit)).
    pub task: String,
    /// The job.
    pub job: JobId,
    /// How it ended.
    pub ending: Ending,
    /// Its result, if it succeeded and [`Run::reads_result`](super::Run::reads_result) asks for it.
    pub result: Option<Value>,
    /// Whether it has a result that the run cannot hold: it was too large to be kept, or has no [`value`](crate::value).
    pub truncated: bool,
    /// Its error, unless it succeeded.
    pub error: Option<RunError>,
    /// How many attempts it had.
    pub attempts: u32,
}

/// How a sub-run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SubRunEnd {
    /// The step that started it.
    pub step: String,
    /// The sub-run.
    pub run: RunId,
    /// Whether this is the end of its compensations, which the parent asked for.
    pub undone: bool,
    /// How it ended: one of the ends of a run.
    pub state: super::RunState,
    /// Its output.
    pub output: Option<Value>,
    /// Its error.
    pub error: Option<RunError>,
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It changed the run.
    Applied,
    /// It was applied before, or there is nothing that it would change.
    Nothing,
    /// It cannot be applied.
    Refused(Refusal),
}

/// Why an event cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run has ended.
    RunDone,
    /// The run has not ended.
    RunNotDone,
    /// The run does not start steps now, so it cannot be paused; or it is not paused, so it cannot be resumed.
    WrongState,
    /// There is no such step, or it is not running.
    NotRunning,
    /// Too many signals wait to be read, or they are too large together.
    TooManySignals,
    /// The signal is too large.
    SignalTooLarge,
    /// The value that came with it cannot be held by a run.
    Value(ValueFault),
    /// Nothing is left to undo.
    NothingToUndo,
}

/// The labels that every job of a run carries, besides its own.
pub(crate) fn task_labels(run: RunId, step: &str) -> Labels {
    Labels::from([("run_id".to_owned(), run.to_string()), ("step".to_owned(), step.to_owned())])
}
