//! What a run asks for. A command is stored as a key in the outbox and built from the run when it is carried out, so
//! that a payload is not stored twice. Ids are derived, so that carrying a command out twice is harmless.

use muster_domain::{Durability, JobId, Labels, OnLostLease, Priority, RunId, Time, Topic};
use serde_json::Value;

use super::{
    place::Place,
    plan::Plan,
    records::{About, Parent, RunError},
    state::{RunState, coded},
};
use crate::definition::Retry;

coded! {
    /// What a command does.
    Verb {
        /// Submits the job of a step.
        Submit = 1 "submit",
        /// Submits the job that undoes a step.
        Undo = 2 "undo",
        /// Cancels the job of a step.
        CancelJob = 3 "cancel_job",
        /// Starts a sub-run.
        StartRun = 4 "start_run",
        /// Cancels a sub-run.
        CancelRun = 5 "cancel_run",
        /// Compensates a sub-run.
        UndoRun = 6 "undo_run",
        /// Emits an event of the user's.
        Notify = 7 "notify",
        /// Opens an approval.
        OpenApproval = 8 "open_approval",
        /// Closes an approval that nobody needs any more.
        CloseApproval = 9 "close_approval",
        /// Gives the run's slot back.
        ReleaseSlot = 10 "release_slot",
        /// Tells the run above that this one ended.
        TellParent = 11 "tell_parent",
        /// Tells the run above that the compensations of this one ended.
        TellUndone = 12 "tell_undone",
    }
}

/// The key of a command: unique in its run, the same whenever the run is replayed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) verb: Verb,
    /// The step; none for what the whole run asks for.
    pub(crate) place: Option<Place>,
    /// The attempt of a sub-run, or the round of compensations.
    pub(crate) number: u32,
}

impl Key {
    pub(crate) fn new(verb: Verb, place: &Place, number: u32) -> Key {
        Key { verb, place: Some(place.clone()), number }
    }

    pub(crate) fn of_run(verb: Verb, number: u32) -> Key {
        Key { verb, place: None, number }
    }

    /// `submit charge`, `start_run ship[2] 3`.
    pub(crate) fn text(&self, plan: &Plan) -> String {
        let mut text = self.verb.as_str().to_owned();
        if let Some(place) = &self.place {
            text.push(' ');
            text.push_str(&plan.text(place));
        }
        if self.number > 0 {
            text.push_str(&format!(" {}", self.number));
        }
        text
    }

    pub(crate) fn parse(plan: &Plan, text: &str) -> Option<Key> {
        let mut parts = text.split(' ');
        let verb = Verb::parse(parts.next()?)?;
        let (mut place, mut number) = (None, 0);
        for part in parts {
            match part.parse::<u32>() {
                Ok(n) => number = n,
                Err(_) => place = Some(plan.place(part)?),
            }
        }
        Some(Key { verb, place, number })
    }
}

/// Something to be done outside of the run. After it is done, [`What::Done`](super::What::Done) with its key clears it.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Unique in the run.
    pub key: String,
    /// What kind of command it is. Cancels go first.
    pub verb: Verb,
    /// What to do.
    pub action: Action,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Submit a job. An id that is taken confirms it, whatever the body.
    Submit(Box<Submit>),
    /// Cancel a job; if it does not exist, create it cancelled.
    CancelJob {
        /// The job.
        job: JobId,
        /// The topic that it is created in.
        topic: Topic,
        /// The task that it is for.
        task: String,
        /// Its labels.
        labels: Labels,
        /// Leave a job that exists alone: its end is awaited, because it may have to be undone.
        only_if_absent: bool,
    },
    /// Start a run of another workflow. An id that is taken confirms it.
    StartRun {
        /// The sub-run.
        run: RunId,
        /// The name of its workflow.
        workflow: String,
        /// Its version; `None` is the latest.
        version: Option<u32>,
        /// Its input.
        input: Option<Value>,
        /// The step that starts it; `None` if nobody waits for it.
        parent: Option<Parent>,
        /// How many runs are above it.
        depth: u32,
    },
    /// Cancel a sub-run; if it does not exist, create it cancelled.
    CancelRun {
        /// The sub-run.
        run: RunId,
        /// The name of its workflow.
        workflow: String,
        /// The step that started it.
        parent: Parent,
        /// Leave a run that exists alone: its end is awaited, because it may have to be undone.
        only_if_absent: bool,
    },
    /// Run the compensations of a sub-run that has ended.
    UndoRun {
        /// The sub-run.
        run: RunId,
        /// The step that asks for it, and is told of the end.
        parent: Parent,
    },
    /// Emit an event.
    Notify {
        /// The event's id, the same whenever it is emitted again.
        id: String,
        /// Its type.
        event_type: String,
        /// Its data.
        data: Option<Value>,
        /// The step.
        step: String,
    },
    /// Ask people.
    OpenApproval {
        /// The step.
        step: String,
        /// What they are asked.
        title: String,
        /// Who may vote.
        from: Vec<String>,
        /// How many must approve.
        quorum: u32,
        /// Until when.
        expires: Option<Time>,
        /// What they are shown.
        show: Option<Value>,
    },
    /// Take a question back.
    CloseApproval {
        /// The step.
        step: String,
    },
    /// Give the run's slot back.
    ReleaseSlot {
        /// The value of the concurrency key.
        key: String,
    },
    /// Tell the run above.
    TellParent {
        /// The step above.
        parent: Parent,
        /// Whether the compensations ended, or the run.
        undone: bool,
        /// How the run ended. For the end of compensations: `succeeded` or `failed`.
        state: RunState,
        /// Its output.
        output: Option<Value>,
        /// Its error.
        error: Option<RunError>,
    },
    /// The command cannot be built from the run. The answer is [`What::Refused`](super::What::Refused) with this error.
    Broken(RunError),
}

/// The job of a step, or of a compensation.
#[derive(Clone, Debug, PartialEq)]
pub struct Submit {
    /// The job's id.
    pub job: JobId,
    /// What the job is for. Its end is told with the same text.
    pub task: String,
    /// The kind of work.
    pub topic: Topic,
    /// The payload.
    pub payload: Option<Value>,
    /// The order in which it leaves the backlog.
    pub priority: Option<Priority>,
    /// Its labels, `run_id` and `step` among them.
    pub labels: Labels,
    /// What a worker must provide.
    pub requires: Labels,
    /// Its concurrency key.
    pub concurrency_key: Option<String>,
    /// How long after the submit it may run.
    pub delay_ms: Option<u64>,
    /// How long after the submit it must have started.
    pub start_within_ms: Option<u64>,
    /// When it must have ended.
    pub deadline: Option<Time>,
    /// How long one attempt may take.
    pub timeout_ms: Option<u32>,
    /// Its retries; what is absent comes from the topic.
    pub retry: Retry,
    /// What to do when a worker falls silent.
    pub on_lost_lease: Option<OnLostLease>,
    /// How safely it must be stored.
    pub durability: Option<Durability>,
}

/// The name of a task: a place, with a mark for compensations.
pub(crate) fn task(plan: &Plan, place: &Place, undo: bool) -> String {
    let text = plan.text(place);
    if undo { format!("undo:{text}") } else { text }
}

/// The id of the job of a step (`round` 0) or of its compensation.
pub(crate) fn job_id(about: &About, plan: &Plan, place: &Place, round: u32) -> JobId {
    let mut key = format!("{}/{}/{}", about.run, about.generation, plan.text(place));
    if round > 0 {
        key.push_str(&format!("/undo/{round}"));
    }
    JobId::derive("step", &about.tenant, &key)
}

/// The id of the sub-run of a step.
pub(crate) fn sub_run_id(about: &About, plan: &Plan, place: &Place, attempt: u32) -> RunId {
    let key = format!("{}/{}/{}/{attempt}", about.run, about.generation, plan.text(place));
    RunId::derive("step", &about.tenant, &key)
}
