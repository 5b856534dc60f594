//! The types of a definition that was read and checked.
//!
//! Absent fields stay absent where another source has a say (the topic, the system); where the format has a default of
//! its own, the default is filled in. Times are in milliseconds, as they are written.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{Backoff, Durability, Labels, OnLostLease, Priority, RetryPolicy, Topic};
use muster_expr::{Expr, Template};
use serde_json::Value;

/// A workflow: a graph of steps, and what holds for the whole run.
#[derive(Clone, Debug)]
pub struct Definition {
    /// A text for people; empty if there is none.
    pub description: String,
    /// The JSON Schema of a run's input.
    pub input: Option<Value>,
    /// How long a run may take.
    pub timeout_ms: Option<u64>,
    /// How many runs go on at once.
    pub concurrency: Option<Concurrency>,
    /// What becomes of running steps when one fails.
    pub on_failure: OnFailure,
    /// What job steps have that say nothing themselves.
    pub defaults: Defaults,
    /// The steps.
    pub steps: Scope,
    /// A run's output, computed from all outer steps when it succeeds.
    pub output: Option<Template>,
}

/// How many runs of a workflow go on at once.
#[derive(Clone, Debug)]
pub struct Concurrency {
    /// Runs with the same value count together; without a key, all runs of the workflow do. It sees `input`, `run` and
    /// `now`.
    pub key: Option<Expr>,
    /// How many runs, at least 1.
    pub max: u32,
    /// What happens to a start that finds no room.
    pub when_full: WhenFull,
}

/// What job steps have that say nothing themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Retries.
    pub retry: Option<Retry>,
    /// The time limit of the whole step.
    pub timeout_ms: Option<u64>,
}

/// A graph of steps. The index of a step is its place in the scope; the needs of a scope have no cycle.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// At least one step, in the order in which they are written.
    pub steps: Vec<Step>,
}

/// One step: what every kind has, and the kind.
#[derive(Clone, Debug)]
pub struct Step {
    /// Unique in the whole definition: `[A-Za-z][A-Za-z0-9_]{0,63}`.
    pub id: String,
    /// The steps that must have ended before this one starts: sorted indexes into the same scope.
    pub needs: Vec<usize>,
    /// Evaluated when the step would start; false skips it. It does not see the item of the step's own for-each.
    pub when: Option<Expr>,
    /// Which ends of the needed steps let it start.
    pub run_if: RunIf,
    /// How failed attempts are retried, where the definition says so for this step. See [`Definition::retry_of`].
    pub retry: Option<Retry>,
    /// How long the whole step may take, retries included, where the definition says so for this step. See
    /// [`Definition::timeout_of`].
    pub timeout_ms: Option<u64>,
    /// Whether a failure of this step fails its scope.
    pub on_error: OnError,
    /// What undoes it.
    pub compensate: Option<Compensate>,
    /// Labels of the step, verbatim: they hold no expressions.
    pub labels: Labels,
    /// Runs the step once per item of a list.
    pub for_each: Option<ForEach>,
    /// What it does.
    pub kind: Kind,
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Submits a job and waits for its end.
    Job(JobStep),
    /// Waits for people to approve.
    Approval(ApprovalStep),
    /// Waits for a time.
    Delay(DelayStep),
    /// Waits for a signal.
    WaitSignal(WaitSignalStep),
    /// Computes a value, its result.
    Set(Template),
    /// Runs the first branch whose condition holds.
    Switch(Vec<Branch>),
    /// Runs branches beside each other.
    Parallel(ParallelStep),
    /// Repeats steps.
    Loop(LoopStep),
    /// Starts a run of another workflow.
    Workflow(WorkflowStep),
    /// Emits an event.
    Notify(NotifyStep),
    /// Fails.
    Fail {
        /// The error's code.
        code: String,
        /// The error's message: a string.
        message: Template,
    },
    /// Runs a graph of steps of its own.
    Steps(Scope),
}

/// The job of a step or of a compensation: the submit fields that make sense in a run.
#[derive(Clone, Debug)]
pub struct JobStep {
    /// The kind of work.
    pub topic: Topic,
    /// The payload; `None` submits no payload.
    pub payload: Option<Template>,
    /// The order in which the job leaves the backlog.
    pub priority: Option<Priority>,
    /// The job's labels. Keys are checked; values are strings, checked when they are computed.
    pub labels: BTreeMap<String, Template>,
    /// What a worker must provide.
    pub requires: Labels,
    /// Only a limited number of jobs with the same key run at once: a string.
    pub concurrency_key: Option<Template>,
    /// How long to wait before the job may run: a whole number, or one expression that gives it.
    pub delay_ms: Option<Template>,
    /// How long after its submit the job must have started.
    pub start_within_ms: Option<u64>,
    /// How long one attempt may take.
    pub timeout_ms: Option<u32>,
    /// What to do when a worker falls silent.
    pub on_lost_lease: Option<OnLostLease>,
    /// How safely the submit must be stored.
    pub durability: Option<Durability>,
}

/// A question to people.
#[derive(Clone, Debug)]
pub struct ApprovalStep {
    /// What they are asked: a string.
    pub title: Template,
    /// Who may vote (`group:sales`, `key:…`); empty = everybody with the scope.
    pub from: Vec<String>,
    /// How many must approve, at least 1.
    pub quorum: u32,
    /// How long they have.
    pub expires_ms: Option<u64>,
    /// What they are shown besides the title.
    pub show: Option<Template>,
}

/// How long a step waits.
#[derive(Clone, Debug)]
pub enum DelayStep {
    /// So many milliseconds after its start: a whole number, or one expression that gives it.
    Ms(Template),
    /// Until this moment: an RFC 3339 time, or one expression that gives it or a timestamp.
    Until(Template),
}

/// A wait for a message to the run.
#[derive(Clone, Debug)]
pub struct WaitSignalStep {
    /// The signal's name.
    pub name: String,
    /// How long to wait.
    pub timeout_ms: Option<u64>,
    /// The JSON Schema of the signal's body.
    pub schema: Option<Value>,
}

/// One branch of a `switch`.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The condition; `None` is `else`, which is the last branch.
    pub when: Option<Expr>,
    /// The steps.
    pub steps: Scope,
}

/// Branches that run beside each other.
#[derive(Clone, Debug)]
pub struct ParallelStep {
    /// The branches by name, sorted by it.
    pub branches: Vec<(String, Scope)>,
    /// How many must succeed.
    pub wait: Wait,
}

/// Steps that repeat.
#[derive(Clone, Debug)]
pub struct LoopStep {
    /// The steps of one iteration; they see `state` and `index` (0 is the first).
    pub steps: Scope,
    /// The first state, computed outside the loop.
    pub init: Option<Template>,
    /// The next state, computed after each iteration; it sees the old `state` and the iteration's steps. `None` keeps
    /// the state.
    pub next: Option<Template>,
    /// Ends the loop when true; it sees the new `state` and the iteration's steps.
    pub until: Expr,
    /// The most iterations, 1 to 10,000.
    pub max: u32,
}

/// A run of another workflow.
#[derive(Clone, Debug)]
pub struct WorkflowStep {
    /// Its name.
    pub name: String,
    /// Its version; `None` is the latest at the start of the step.
    pub version: Option<u32>,
    /// Its input.
    pub input: Option<Template>,
    /// Whether the step ends with the sub-run, or at once.
    pub wait: bool,
}

/// An event of the user's.
#[derive(Clone, Debug)]
pub struct NotifyStep {
    /// The event's type, as in CloudEvents.
    pub event_type: String,
    /// The event's data.
    pub data: Option<Template>,
}

/// Runs a step once per item of a list.
#[derive(Clone, Debug)]
pub struct ForEach {
    /// The list.
    pub items: Expr,
    /// The item's name in expressions (`as`). `item` means the item too, whatever the name.
    pub name: String,
    /// How many items run at once, at least 1.
    pub max_parallel: u32,
    /// How many failed items are still a success.
    pub tolerate: Tolerate,
    /// So many successes are enough; the rest is cancelled.
    pub min_success: Option<u32>,
    /// A value kept of each item; it sees the item, the step itself as the item ended, and its nested steps.
    pub collect: Option<Expr>,
}

/// What undoes a step. Its input is computed when the step succeeded; it sees the step itself.
#[derive(Clone, Debug)]
pub struct Compensate {
    /// The job; `None` is `compensate: self` of a workflow step: the compensations of the sub-run.
    pub job: Option<JobStep>,
    /// Which ends it undoes.
    pub when: CompensateWhen,
    /// Its retries.
    pub retry: Option<Retry>,
}

/// Retries as a definition has them: what is absent comes from the topic or the system.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Retry {
    /// How many attempts may be started.
    pub max_attempts: Option<u16>,
    /// The wait before the second attempt.
    pub initial_ms: Option<u64>,
    /// The factor between two waits.
    pub factor: Option<f64>,
    /// The longest wait.
    pub max_ms: Option<u64>,
    /// The share of a wait by which jitter moves it.
    pub jitter: Option<f64>,
}

/// How many failed items of a for-each are still a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerate {
    /// So many.
    Count(u32),
    /// So many of a hundred, 0 to 100.
    Percent(u32),
}

/// How many branches of a `parallel` must succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// All.
    All,
    /// One.
    Any,
    /// So many, 1 to the number of branches.
    Count(u32),
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The word in a definition.
            pub fn as_str(self) -> &'static str { match self { $($name::$variant => $text,)* } }
            /// Reads the word.
            pub fn parse(text: &str) -> Option<$name> { match text { $($text => Some($name::$variant),)* _ => None } }
        }
    )*};
}

words! {
    /// What becomes of running steps when one fails.
    OnFailure {
        /// They are cancelled, except for those that declare a compensation.
        #[default]
        Cancel = "cancel",
        /// They run to their end.
        Finish = "finish",
    }
    /// What happens to a start that finds no room.
    WhenFull {
        /// It waits.
        #[default]
        Queue = "queue",
        /// It is refused.
        Reject = "reject",
        /// The oldest run is cancelled, queued ones first.
        CancelOldest = "cancel_oldest",
    }
    /// Which ends of the needed steps let a step start.
    RunIf {
        /// Each succeeded, was skipped, or failed with `on_error: continue`.
        #[default]
        Success = "success",
        /// At least one failed.
        Failure = "failure",
        /// Any.
        Always = "always",
    }
    /// Whether a failure of a step fails its scope.
    OnError {
        /// It does.
        #[default]
        Fail = "fail",
        /// It does not.
        Continue = "continue",
    }
    /// Which ends a compensation undoes.
    CompensateWhen {
        /// Success.
        #[default]
        Succeeded = "succeeded",
        /// Every end of a step that started.
        Started = "started",
    }
}

impl Retry {
    /// These retries; where they say nothing, those of `other`.
    pub fn or(self, other: Retry) -> Retry {
        Retry {
            max_attempts: self.max_attempts.or(other.max_attempts),
            initial_ms: self.initial_ms.or(other.initial_ms),
            factor: self.factor.or(other.factor),
            max_ms: self.max_ms.or(other.max_ms),
            jitter: self.jitter.or(other.jitter),
        }
    }

    /// The policy, where `usual` fills in what is absent.
    pub fn over(self, usual: RetryPolicy) -> RetryPolicy {
        let span = |given: Option<u64>, usual: Duration| given.map_or(usual, Duration::from_millis);
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(usual.max_attempts),
            backoff: Backoff {
                initial: span(self.initial_ms, usual.backoff.initial),
                factor: self.factor.unwrap_or(usual.backoff.factor),
                max: span(self.max_ms, usual.backoff.max),
                jitter: self.jitter.unwrap_or(usual.backoff.jitter),
            },
        }
    }
}

impl Definition {
    /// The retries of a step: its own, and for a job step the definition's defaults where it has none.
    pub fn retry_of(&self, step: &Step) -> Retry {
        let own = step.retry.unwrap_or_default();
        match (&step.kind, self.defaults.retry) {
            (Kind::Job(_), Some(usual)) => own.or(usual),
            _ => own,
        }
    }

    /// How many steps it has, nested ones included.
    pub fn step_count(&self) -> usize {
        fn count(scope: &Scope) -> usize {
            scope.steps.iter().map(|step| 1 + step.kind.scopes().into_iter().map(count).sum::<usize>()).sum()
        }
        count(&self.steps)
    }

    /// The time limit of a whole step: its own, and for a job step the definition's default where it has none.
    pub fn timeout_of(&self, step: &Step) -> Option<u64> {
        match step.kind {
            Kind::Job(_) => step.timeout_ms.or(self.defaults.timeout_ms),
            _ => step.timeout_ms,
        }
    }
}

impl Kind {
    /// The field of a step that names the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Job(_) => "job",
            Kind::Approval(_) => "approval",
            Kind::Delay(_) => "delay",
            Kind::WaitSignal(_) => "wait_signal",
            Kind::Set(_) => "set",
            Kind::Switch(_) => "switch",
            Kind::Parallel(_) => "parallel",
            Kind::Loop(_) => "loop",
            Kind::Workflow(_) => "workflow",
            Kind::Notify(_) => "notify",
            Kind::Fail { .. } => "fail",
            Kind::Steps(_) => "steps",
        }
    }

    /// The scopes that the step holds, in the order in which a run numbers them.
    pub fn scopes(&self) -> Vec<&Scope> {
        match self {
            Kind::Switch(branches) => branches.iter().map(|branch| &branch.steps).collect(),
            Kind::Parallel(parallel) => parallel.branches.iter().map(|(_, steps)| steps).collect(),
            Kind::Loop(step) => vec![&step.steps],
            Kind::Steps(steps) => vec![steps],
            _ => Vec::new(),
        }
    }
}

impl Scope {
    /// The place of a step in this scope.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.id == id)
    }
}
