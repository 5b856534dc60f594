//! A workflow's definition: reading it from YAML or JSON, checking it, its JSON form, its schema and its graph.

mod model;

pub use model::{
    ApprovalStep, Branch, Compensate, CompensateWhen, Concurrency, Defaults, Definition, DelayStep, ForEach, JobStep,
    Kind, LoopStep, NotifyStep, OnError, OnFailure, ParallelStep, Retry, RunIf, Scope, Step, Tolerate, Wait,
    WaitSignalStep, WhenFull, WorkflowStep,
};
