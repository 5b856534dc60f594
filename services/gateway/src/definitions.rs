//! Reads definitions of workflows in requests.
//!
//! Promises: every fault is named with its line, its column and its place; a definition that is expensive to check
//! delays no other request, because a few threads beside the requests check definitions, and a check that waits too
//! long is refused. Leaves to others: what a definition means (`muster_engine`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use muster_domain::ProblemCode;
use muster_engine::definition::{Definition, DefinitionFault, FaultCode, Format, read_named};
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
                read_named(&text, format, own.as_deref())
            })
            .await
            .ok()
        };
        let busy =
            || Problem::new(ProblemCode::Overloaded, "too many definitions wait to be checked; nothing was done");
        let read = tokio::time::timeout(PATIENCE, done).await.ok().flatten().ok_or_else(busy)?;
        read.map_err(refused)
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
}
