//! Reads definitions of workflows in requests.
//!
//! Promises: every fault is named with its line, its column and its place; a definition that is expensive to check
//! delays no other request, because a few threads beside the requests check definitions, and a check that waits too
//! long is refused; an input or a signal that fits a schema in a definition is cheap to check. Leaves to others: what a
//! definition means (`muster_engine`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use muster_domain::ProblemCode;
use muster_engine::definition::{Definition, DefinitionFault, FaultCode, Format, Kind, Scope, Step, read_named};
use muster_flow::admission::{pointer, read_schema};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::problem::{Fault, Problem};

/// The most definitions that are checked at the same time.
const AT_A_TIME: usize = 2;
/// How long a request waits for its check, and for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks definitions, a few at a time.
pub(crate) struct Definitions(Arc<Semaphore>);

impl Default for Definitions {
    fn default() -> Definitions {
        Definitions(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

impl Definitions {
    /// Reads and checks a definition. With the name of the workflow, it must not start itself.
    pub(crate) async fn read(&self, text: Bytes, format: Format, own: Option<String>) -> Result<Definition, Problem> {
        let turns = self.0.clone();
        let done = async move {
            let turn = turns.acquire_owned().await.ok()?;
            tokio::task::spawn_blocking(move || {
                // Hold the turn until the check is done, even if the request has timed out.
                let _turn = turn;
                read_checked(&text, format, own.as_deref())
            })
            .await
            .ok()
        };
        let busy =
            || Problem::new(ProblemCode::Overloaded, "too many definitions wait to be checked; nothing was done");
        tokio::time::timeout(PATIENCE, done).await.ok().flatten().ok_or_else(busy)?
    }
}

/// Reads and checks a definition, and the cost of the schemas in it.
fn read_checked(text: &[u8], format: Format, own: Option<&str>) -> Result<Definition, Problem> {
    let definition = read_named(text, format, own).map_err(refused)?;
    let mut faults = Vec::new();
    if let Some(schema) = &definition.input {
        check_schema(schema, "/input", &mut faults);
    }
    each_step(&definition.steps, "/steps", &mut |step, at| {
        if let Kind::WaitSignal(wait) = &step.kind
            && let Some(schema) = &wait.schema
        {
            check_schema(schema, &format!("{at}/wait_signal/schema"), &mut faults);
        }
    });
    if faults.is_empty() { Ok(definition) } else { Err(Problem::fields(faults)) }
}

/// Schemas of inputs and signals have the bounds of schemas of payloads: each check of a value is cheap.
fn check_schema(schema: &Value, at: &str, faults: &mut Vec<Fault>) {
    let fault = |why: muster_flow::admission::SchemaFault| Fault {
        code: ProblemCode::InvalidRequest,
        pointer: format!("{at}{}", why.pointer),
        detail: why.detail,
    };
    faults.extend(read_schema(&schema.to_string()).err().into_iter().flatten().map(fault));
}

/// Refuses to store a definition with steps that no service runs yet.
pub(crate) fn served(definition: &Definition) -> Result<(), Problem> {
    let mut faults = Vec::new();
    each_step(&definition.steps, "/steps", &mut |step, at| {
        if matches!(step.kind, Kind::Approval(_)) {
            faults.push(Fault {
                code: ProblemCode::UnsupportedField,
                pointer: format!("{at}/approval"),
                detail: format!("the step `{}` waits for votes, which this version does not take yet", step.id),
            });
        }
    });
    if faults.is_empty() { Ok(()) } else { Err(Problem::fields(faults)) }
}

/// Visits every step with its JSON pointer, those inside of other steps behind these.
fn each_step(scope: &Scope, at: &str, visit: &mut dyn FnMut(&Step, &str)) {
    for (n, step) in scope.steps.iter().enumerate() {
        let at = format!("{at}/{n}");
        visit(step, &at);
        match &step.kind {
            Kind::Switch(branches) => {
                for (n, branch) in branches.iter().enumerate() {
                    let field = if branch.when.is_some() { "steps" } else { "else" };
                    each_step(&branch.steps, &format!("{at}/switch/{n}/{field}"), visit);
                }
            }
            Kind::Parallel(parallel) => {
                let at = format!("{at}/parallel/branches");
                parallel.branches.iter().for_each(|(name, steps)| each_step(steps, &pointer(&at, name), visit));
            }
            Kind::Loop(inner) => each_step(&inner.steps, &format!("{at}/loop/steps"), visit),
            Kind::Steps(steps) => each_step(steps, &format!("{at}/steps"), visit),
            _ => {}
        }
    }
}

/// The refusal of a definition.
pub(crate) fn refused(faults: Vec<DefinitionFault>) -> Problem {
    let fault = |fault: DefinitionFault| {
        let code = if fault.code == FaultCode::UnknownField.as_str() {
            ProblemCode::UnknownField
        } else {
            ProblemCode::InvalidRequest
        };
        let detail = format!("line {}, column {}: {}", fault.line, fault.column, fault.message);
        Fault { code, pointer: fault.pointer, detail }
    };
    Problem::fields(faults.into_iter().map(fault).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named_with_its_line_and_column() {
        let text = b"steps:\n  - id: a\n    job: {topic: t}\n    neds: [b]\n  - id: a\n    delay: {ms: 1}\n";
        let problem = refused(read_named(text, Format::Yaml, None).unwrap_err());
        assert_eq!(problem.status(), 422);
        let unknown = problem.errors.iter().find(|fault| fault.pointer == "/steps/0/neds").unwrap();
        assert_eq!(unknown.code, ProblemCode::UnknownField);
        assert!(unknown.detail.starts_with("line 4, column 5: "), "{}", unknown.detail);
        assert!(problem.errors.iter().any(|fault| fault.pointer == "/steps/1/id"), "{:?}", problem.errors);
    }

    #[test]
    fn a_step_that_is_not_served_is_named_wherever_it_stands() {
        let ask = "[{id: ID, approval: {title: x}}]";
        let text = format!(
            "steps:\n\
             - {{id: a, switch: [{{when: 'true', steps: {}}}, {{else: {}}}]}}\n\
             - {{id: b, parallel: {{branches: {{x: {}}}}}}}\n\
             - {{id: c, loop: {{steps: {}, until: 'true', max: 2}}}}\n\
             - {{id: d, steps: {}}}\n",
            ask.replace("ID", "a1"),
            ask.replace("ID", "a2"),
            ask.replace("ID", "b1"),
            ask.replace("ID", "c1"),
            ask.replace("ID", "d1"),
        );
        let refused = served(&read_checked(text.as_bytes(), Format::Yaml, None).unwrap()).unwrap_err();
        assert_eq!(refused.code, ProblemCode::UnsupportedField);
        let pointers: Vec<&str> = refused.errors.iter().map(|fault| fault.pointer.as_str()).collect();
        let named = ["0/switch/0/steps", "0/switch/1/else", "1/parallel/branches/x", "2/loop/steps", "3/steps"];
        assert_eq!(pointers, named.map(|at| format!("/steps/{at}/0/approval")));
        served(&read_checked(b"steps: [{id: a, set: 1}]", Format::Yaml, None).unwrap()).unwrap();
    }

    #[test]
    fn a_schema_that_is_expensive_to_check_is_refused_at_its_place() {
        let pattern = "{type: string, pattern: '(?=x)'}";
        let text = format!(
            "input: {pattern}\nsteps: [{{id: a, steps: [{{id: b, wait_signal: {{name: s, schema: {pattern}}}}}]}}]"
        );
        let refused = read_checked(text.as_bytes(), Format::Yaml, None).unwrap_err();
        let pointers: Vec<&str> = refused.errors.iter().map(|fault| fault.pointer.as_str()).collect();
        assert!(pointers[0].starts_with("/input"), "{pointers:?}");
        assert!(pointers[1].starts_with("/steps/0/steps/0/wait_signal/schema"), "{pointers:?}");
    }
}
