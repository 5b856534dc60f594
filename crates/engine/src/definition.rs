//! A workflow's definition: reading it from YAML or JSON, checking it, its JSON form, its schema and its graph.
//!
//! [`read`] is the only way to a [`Definition`], so one that exists has no fault. All faults of a text are reported at
//! once, each with line, column, JSON pointer, a stable code and a sentence; only a text that is no tree at all, or
//! exceeds its bounds, has a single one. What a definition costs to read is bounded before it is read.

mod check;
mod faults;
mod form;
mod graph;
mod model;
mod names;
mod read;
mod schema;
mod tree;

#[cfg(test)]
mod tests;

pub use faults::{DefinitionFault, FaultCode, MOST_FAULTS};
pub use graph::{GraphFormat, StateOf, graph};
pub use model::{
    ApprovalStep, Branch, Compensate, CompensateWhen, Concurrency, Defaults, Definition, DelayStep, ForEach, JobStep,
    Kind, LoopStep, NotifyStep, OnError, OnFailure, ParallelStep, Retry, RunIf, Scope, Step, Tolerate, Wait,
    WaitSignalStep, WhenFull, WorkflowStep,
};
pub use names::{check_event_type, check_signal_name, check_workflow_name};
pub use schema::{page, schema};
pub use tree::{EXPRESSION, Format, MOST_ALIASES, MOST_BYTES, MOST_DEPTH, MOST_VALUES, PATTERN};

/// Reads and checks a definition.
pub fn read(text: &[u8], format: Format) -> Result<Definition, Vec<DefinitionFault>> {
    read_named(text, format, None)
}

/// As [`read`], for the workflow of this name, which must not start itself.
pub fn read_named(text: &[u8], format: Format, own: Option<&str>) -> Result<Definition, Vec<DefinitionFault>> {
    let root = tree::parse(text, format).map_err(|broken| vec![broken.into()])?;
    let mut faults = faults::Faults::new(&root);
    let definition = read::definition(&root, &mut faults);
    if let Some(definition) = &definition {
        check::definition(definition, own, &mut faults);
    }
    match definition {
        Some(definition) if faults.none() => Ok(definition),
        _ => Err(faults.into_list()),
    }
}
